"""Asks for every request whether its caller may do what it wants, before anything is decided or answered.

`authorization` decides; here the records it needs are fetched: the administrators of a tenant and the permissions in a
namespace, which the broker keeps in memory and watches. Messages and acknowledgements do not come through here: the
right to produce or to consume was asked when the producer or consumer was made, and is asked again when the
permissions of its namespace change.
"""

import logging
from collections.abc import Awaitable, Callable

from broker.errors import BrokerError, MetadataFailure, NoSuchTenant, NotAuthenticated, NotAuthorized
from broker.policies.permissions import Permissions
from broker.security.authorization import Known, Need, Operation, Rules, denial, needs_records
from magnetar_core.security.caller import Caller

log = logging.getLogger(__name__)

AdminsOf = Callable[[str], Awaitable[frozenset[str] | None]]
"""The administrators of a tenant; None if there is no such tenant. Raises MetadataFailure."""

PermissionsOf = Callable[[str], Awaitable[Permissions | None]]
"""The permissions in `tenant/namespace`; None if there is no such namespace. Raises MetadataFailure."""


class Access:
    """Lets callers in, or refuses them."""

    def __init__(self, rules: Rules | None, admins_of: AdminsOf, permissions_of: PermissionsOf) -> None:
        """*rules* None: authorization is off, and everybody may do everything."""
        self._rules = rules
        self._admins_of = admins_of
        self._permissions_of = permissions_of

    def use(self, rules: Rules | None) -> None:
        """Other rules hold from now on."""
        self._rules = rules

    @property
    def is_open(self) -> bool:
        """Whether authorization is off."""
        return self._rules is None

    def spoken_for(self, caller: Caller, named: Caller) -> Caller:
        """The caller for whom another broker asks, which names it. Raises NotAuthorized: *caller* is not a broker."""
        rules = self._rules
        if rules is None or caller.is_trusted or (caller.role in rules.super_users and caller.original is None):
            return named
        raise NotAuthorized(f"{caller} may not ask for {named}")

    async def check(self, caller: Caller, need: Need) -> None:
        """Return if *caller* may do what *need* says.

        Raises NotAuthenticated, NotAuthorized, NoSuchTenant, and MetadataFailure if it cannot be found out.

        Who has a role and asks about a tenant that does not exist gets NoSuchTenant, and so learns which tenants there
        are: Apache's brokers (4.0.8) do the same over HTTP, and scripts depend on it. The record of a tenant itself is
        the exception (NotAuthorized). Whether a namespace or a topic exists is never shown.
        """
        rules = self._rules
        if rules is None or caller.is_trusted:
            return
        known = Known()
        if needs_records(rules, caller, need):
            known = await self._known(caller, need)
        reason = denial(rules, caller, need, known)
        if reason is None:
            return
        if caller.role is None:
            raise NotAuthenticated(reason)
        if not known.has_tenant and need.operation is not Operation.GET_TENANT:
            raise NoSuchTenant("Tenant does not exist", way_out="create it first, or correct the name")
        raise NotAuthorized(reason)

    async def _known(self, caller: Caller, need: Need) -> Known:
        """Raises MetadataFailure, with a text that reveals nothing of what is stored."""
        try:
            admins = await self._admins_of(need.tenant)
            if admins is None:
                return Known(has_tenant=False)
            return Known(admins, await self._permissions_of(need.namespace) if need.namespace else None)
        except BrokerError as error:
            log.warning("whether %s may %s cannot be found out: %s", caller, need, error)
            raise MetadataFailure("it cannot be found out now who may do this; try again later") from error
