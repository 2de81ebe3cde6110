"""The Scheduler service: groups of users."""

from gpufleet.v1 import scheduler_pb2

from ...engine import Engine
from ...state.access import Role
from ...state.groups.changes import GroupEvent
from ...state.groups.group import UserGroup
from ...state.replies import GroupChanged
from ...wire.groups.checking import group_removal_of, group_rename_of, group_set_of
from ...wire.groups.convert import user_group_proto
from ...wire.groups.spec_group import group_name
from ..answers import Calls, reply_of
from ..paging import PageTokens, page_size
from ..roles import caller


class GroupCalls(Calls):
    """What admins do with groups, and what their members see. Each method is one RPC."""

    engine: Engine
    pages: PageTokens

    async def ListGroups(self, request: scheduler_pb2.ListGroupsRequest) -> scheduler_pb2.ListGroupsResponse:
        """A page of the groups that the caller may see, in the order of their names."""
        size = page_size(request.page_size)
        only = group_name(request.name, "name") if request.name else ""
        query = f"groups {only}"
        cursor = self.pages.read(query, request.page_token)
        known = [each for each in self._visible_groups() if not only or each.name == only]
        wanted = [each for each in known if not cursor or each.name > cursor[0]]
        more = self.pages.sign(query, [wanted[size - 1].name]) if len(wanted) > size else ""
        return scheduler_pb2.ListGroupsResponse(groups=map(self._group_proto, wanted[:size]), next_page_token=more)

    async def SetGroup(self, request: scheduler_pb2.SetGroupRequest) -> scheduler_pb2.SetGroupResponse:
        """Make a group, or change it."""
        reply = await self._group_changed(group_set_of(request, caller().user, self.engine.now()))
        return scheduler_pb2.SetGroupResponse(
            group=self._group_proto(reply.group), changed=reply.changed, is_new=reply.is_new, notes=reply.notes
        )

    async def RenameGroup(self, request: scheduler_pb2.RenameGroupRequest) -> scheduler_pb2.RenameGroupResponse:
        """Give a group another name."""
        reply = await self._group_changed(group_rename_of(request, caller().user, self.engine.now()))
        return scheduler_pb2.RenameGroupResponse(group=self._group_proto(reply.group))

    async def RemoveGroup(self, request: scheduler_pb2.RemoveGroupRequest) -> scheduler_pb2.RemoveGroupResponse:
        """Remove a group."""
        reply = await self._group_changed(group_removal_of(request, caller().user, self.engine.now()))
        return scheduler_pb2.RemoveGroupResponse(group=self._group_proto(reply.group))

    async def _group_changed(self, event: GroupEvent) -> GroupChanged:
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, GroupChanged)
        return reply

    def _visible_groups(self) -> list[UserGroup]:
        """All of them for admins and viewers, and for a user those that they are in."""
        groups, who = self.engine.view.durable.groups, caller()
        if who.role is not Role.USER:
            return list(groups.all_live())
        return sorted(groups.of_user(who.user), key=lambda each: each.name)

    def _group_proto(self, group: UserGroup) -> scheduler_pb2.UserGroup:
        return user_group_proto(self.engine.view.durable, group, self.engine.now())
