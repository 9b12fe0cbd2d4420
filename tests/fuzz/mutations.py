"""Hypothesis strategies that break valid files: as bytes, and as protocol buffers that still parse.

A fuzz test of one more reader: `mutated(valid_bytes, tokens=...)` for its inputs, `harness.attempt` for the call.
"""

import hypothesis.strategies as st

# Lengths, counts and offsets that readers get wrong, in the forms that files hold them.
NUMBERS = [0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]
MOST_ADDED_BYTES = 100_000
# Mostly one: several at once are mostly found by the first check.
EDITS = [1, 1, 1, 2, 3, 6]


@st.composite
def mutated(draw, original, others=(), tokens=()):
    """The bytes of a valid file after one to six edits, or now and then bytes that have nothing to do with it.

    Pieces of the others may be spliced in, and tokens put in anywhere, or in the place of one of their kind.
    """
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    content = original
    for _ in range(draw(st.sampled_from(EDITS))):
        content = _edit(draw, content, [original, *others], list(tokens))
    return content


def _edit(draw, content, sources, tokens):
    kinds = ["flip", "set", "number", "truncate", "delete", "repeat", "insert", "splice"] + ["token", "replace"] * bool(
        tokens
    )
    kind = draw(st.sampled_from(kinds))
    at = draw(st.integers(0, len(content)))
    if kind == "truncate":
        return content[:at]
    if kind == "token":
        return content[:at] + draw(st.sampled_from(tokens)) + content[at:]
    if kind == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=16)) + content[at:]
    if kind == "replace":
        present = [t for t in tokens if t in content]
        old = draw(st.sampled_from(present)) if present else b""
        return content.replace(old, draw(st.sampled_from(tokens)), 1)
    if kind == "splice":
        source = draw(st.sampled_from(sources))
        start = draw(st.integers(0, len(source)))
        piece = source[start : start + draw(st.integers(1, 64))]
        return content[:at] + piece + content[at + draw(st.sampled_from([0, len(piece)])) :]
    if kind == "number":
        size = draw(st.sampled_from([1, 2, 4, 8]))
        number = draw(st.sampled_from(NUMBERS)) % 256**size
        return content[:at] + number.to_bytes(size, draw(st.sampled_from(["little", "big"]))) + content[at + size :]
    if at == len(content):
        return content
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]
    if kind == "set":
        return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
    end = at + draw(st.integers(1, 64))
    return content[:at] + (content[at:end] * draw(st.integers(2, 40)) if kind == "repeat" else b"") + content[end:]


@st.composite
def mutated_message(draw, message, words=()):
    """A copy of a valid message with one to four values changed, removed or repeated; words stand in for strings."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(draw(st.integers(1, 4))):
        _change(draw, copy, list(words))
    return copy


def _change(draw, message, words):
    fields = message.ListFields()
    if not fields:
        return
    field, value = fields[draw(st.integers(0, len(fields) - 1))]
    if draw(st.integers(0, 29)) == 0:
        message.ClearField(field.name)
        return
    is_message = field.type == field.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        key = draw(st.sampled_from(sorted(value)))
        holds_messages = field.message_type.fields_by_name["value"].type == field.TYPE_MESSAGE
        action = draw(st.integers(0, 9))
        if action == 0:
            del value[key]
        elif action == 1 and isinstance(key, str) and holds_messages:
            value[draw(st.sampled_from(words or [key + "_"]))].CopyFrom(value[key])
        elif holds_messages:
            _change(draw, value[key], words)
        else:
            value[key] = type(value[key])()
    elif hasattr(value, "extend"):  # Repeated; protobuf 7 has no field.label any more.
        i = draw(st.integers(0, len(value) - 1))
        action = draw(st.integers(0, 9))
        if action == 0:
            del value[i]
        elif action == 1:
            times = draw(st.sampled_from([1, 3, 100]))
            large = is_message and times * value[i].ByteSize() > MOST_ADDED_BYTES
            value.extend([value[i]] * (1 if large else times))
        elif is_message:
            _change(draw, value[i], words)
        else:
            value[i] = _scalar(draw, field, value[i], words)
    elif is_message:
        _change(draw, value, words)
    else:
        setattr(message, field.name, _scalar(draw, field, value, words))


def _scalar(draw, field, old, words):
    if isinstance(old, bool):
        return not old
    if field.type == field.TYPE_ENUM:
        numbers = [v.number for v in field.enum_type.values]
        return draw(st.sampled_from(numbers))
    if isinstance(old, int):
        small = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32)
        low = 0 if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else -(2**31 if small else 2**63)
        high = (2**31 if small else 2**63) - 1
        return min(max(draw(st.sampled_from([*NUMBERS, old - 1, old + 1])), low), high)
    if isinstance(old, float):
        return draw(st.sampled_from([0.0, -1.0, 1e30, float("nan"), float("inf")]))
    if isinstance(old, str):
        return draw(st.sampled_from([*words, "", old + "_", old[:-1], "__class__", "../../x", "\n\0"]))
    return draw(mutated(old)) if old else draw(st.binary(max_size=8))
