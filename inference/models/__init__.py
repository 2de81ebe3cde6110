"""Models that come with gpufleet: `test-pattern`, which computes nothing, for measuring; and `canvas`, a network to
draw with.

They use gpufleet.model and nothing else of this program, as any model does, so they are examples too. A new one is
named in `loading.SHIPPED`.
"""
