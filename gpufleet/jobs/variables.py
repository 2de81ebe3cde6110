"""The variables by which a job knows itself, as scheduler, agent and gpuctl spell them: see docs/inside-a-job.md."""

JOB_ID_VARIABLE = "GPUFLEET_JOB_ID"
JOB_TOKEN_VARIABLE = "GPUFLEET_JOB_TOKEN"
"""A token that is good for the job's own attempt alone, and ends with it."""

SCHEDULER_VARIABLE = "GPUFLEET_SCHEDULER"
CA_FILE_VARIABLE = "GPUFLEET_CA_FILE"
CLIENT_CERT_FILE_VARIABLE = "GPUFLEET_CLIENT_CERT_FILE"
"""The certificate that jobs of a node call a scheduler with which asks for one, where the agent has one for them."""
INSECURE_VARIABLE = "GPUFLEET_INSECURE"
IMAGE_CREDENTIALS = "GPUFLEET_IMAGE_CREDENTIALS"
"""Not a variable of any job: what the secret of its image is called on its way into a launch."""
OF_SUBMIT = ("GPUFLEET_JOB_NAME", "GPUFLEET_USER", "GPUFLEET_NODELIST", "GPUFLEET_NODE", "GPUFLEET_SUBMIT_CWD")
"""What the scheduler says of the job and its placement."""
