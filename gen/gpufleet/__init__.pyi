# What pyright takes for gpufleet in a checkout, where it does not see that gpufleet/__init__.py looks here, too.
from gpufleet.api.connecting import connect as connect, connect_async as connect_async
from gpufleet.api.executor import Executor as Executor
from gpufleet.api.failures import JobFailed as JobFailed, TaskFailed as TaskFailed
from gpufleet.api.fleet import AsyncFleet as AsyncFleet
from gpufleet.api.job import AsyncJob as AsyncJob
from gpufleet.api.job_view import JobFile as JobFile
from gpufleet.api.sync import Fleet as Fleet, Job as Job
from gpufleet.errors import GpufleetError as GpufleetError

__all__ = ["AsyncFleet", "AsyncJob", "Executor", "Fleet", "GpufleetError", "Job", "JobFailed", "JobFile", "TaskFailed", "connect", "connect_async"]
