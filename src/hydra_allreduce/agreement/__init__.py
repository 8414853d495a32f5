"""How members agree on views and on the result of each round: sans-IO, no clock, no sockets, no threads."""

from hydra_allreduce.agreement.decide import Decision, Report, decide
from hydra_allreduce.agreement.events import Action, Event
from hydra_allreduce.agreement.genesis import Genesis
from hydra_allreduce.agreement.member import MemberMachine
from hydra_allreduce.agreement.messages import Message, decode_message, encode_message
from hydra_allreduce.agreement.record import (
    Contribution,
    Lineage,
    RecordHead,
    RecordId,
    RoundRecord,
    genesis_record,
)
from hydra_allreduce.agreement.view import Ballot, Departure, Member, MemberId, View

__all__ = [
    "Action",
    "Ballot",
    "Contribution",
    "Decision",
    "Departure",
    "Event",
    "Genesis",
    "Lineage",
    "Member",
    "MemberId",
    "MemberMachine",
    "Message",
    "RecordHead",
    "RecordId",
    "Report",
    "RoundRecord",
    "View",
    "decide",
    "decode_message",
    "encode_message",
    "genesis_record",
]
