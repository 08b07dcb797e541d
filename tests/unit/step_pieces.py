"""The messages of a step, whichever path has read its pieces."""

from collections.abc import Iterable

from delayd.node.delivery.planner import FlatPiece, Piece
from delayd.wheel import Frame


def decoded(piece: Piece | FlatPiece) -> Piece:
    """The piece as Python reads it."""
    return piece if isinstance(piece, Piece) else piece.read(piece.entries)


def messages_of(pieces: Iterable[Piece | FlatPiece]) -> list[Frame]:
    """Their messages, in order."""
    return [frame for piece in pieces for frame in decoded(piece).messages]
