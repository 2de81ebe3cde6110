"""A real container engine for tests: Podman's service with everything of its own in a folder, and images of busybox."""
