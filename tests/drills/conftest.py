"""The network of the machines; where one cannot be made the drill skips, and says so; CI must have it."""

from tests.several_nodes.conftest import network as network
