"""What a program needs to use a fleet: `gpuctl` stands on it, and so does every program of other people's.

Calls to the scheduler, and what is more than one call: a folder that goes along, a request that is never done twice,
output that is followed through lost connections, results that are brought here. It prints nothing and decides nothing;
what is worth a word goes to `Notices`. grpc is imported by what needs it, never before.

Read first: `settings.py` (where the scheduler is and who asks), then `client.py` and its twin on asyncio.
`submitting/` goes from options to a request, with `folders/` for what is uploaded and `blob_upload.py` for how;
`following/` stays with jobs; `inside/` reaches into one that runs; `named_jobs.py` knows what a person calls them,
`outcome.py` how they ended, `results.py` what they left.
"""
