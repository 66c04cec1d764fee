"""Clocks of simulated machines: they drift, their dates are stepped, and a reboot begins a new boot."""

from typing import Final

from volcano_locks_server.ports.clock import Boot, SystemClock

from .world import World

START_SECONDS: Final = 1_784_556_000.0  # the date at true time 0: 2026-07-20T14:00:00Z


class Machine:
    """A machine's steady clock, which no one can set, and its date.

    `rate` and `date_rate`: seconds of its clock and of its date in a true second; a synchronised date has no rate of
    its own. `date_error`: how far its date is ahead, in seconds.
    """

    def __init__(
        self, world: World, name: str, *, rate: float = 1.0, date_rate: float = 1.0, date_error: float = 0.0
    ) -> None:
        self.name: Final = name
        self.rate: Final = rate
        self.date_error = date_error
        self._date_rate: Final = date_rate
        self.is_synchronised = True
        self.world: Final = world
        self._boots = 0
        self.booted_at = 0.0
        self.reboot()

    def reboot(self) -> None:
        self._boots += 1
        self.booted_at = self.world.now
        self.boot_id = f"{self.name}-boot-{self._boots}"

    def up_seconds(self) -> float:
        """The steady clock: seconds since the boot."""
        return (self.world.now - self.booted_at) * self.rate

    def true_time_of(self, up_seconds: float) -> float:
        return self.booted_at + up_seconds / self.rate

    def date_seconds(self) -> float:
        return START_SECONDS + self.world.now * self._date_rate + self.date_error

    def date_ms(self) -> int:
        return int(self.date_seconds() * 1_000)


class ProcessClock(SystemClock):
    """The product's clock in one process of that machine."""

    __slots__ = ("_ahead_seconds", "_machine")

    def __init__(self, machine: Machine) -> None:
        self._machine: Final = machine
        self._ahead_seconds: Final = machine.date_seconds() - machine.up_seconds()
        super().__init__(lambda: int(machine.date_seconds() * 1e9), lambda: int(machine.up_seconds() * 1e9))

    def now_ms(self) -> int:
        """The same, without five calls: the product asks several times for each request."""
        machine = self._machine
        return int((self._ahead_seconds + (machine.world.now - machine.booted_at) * machine.rate) * 1_000)

    def boot(self) -> Boot:
        return Boot(self._machine.boot_id, int(self._machine.up_seconds() * 1_000))

    def synchronised_ms(self) -> int | None:
        return self._machine.date_ms() if self._machine.is_synchronised else None
