"""Writes a synthetic planning problem as CSV to standard output, for tests and benchmarks of the planner.

Kinds: `uniform` (sizes uniform up to 2^20, lives up to 2,000), `short` (lives up to 200), `exponential` (lives of 1,000 on
average), `even` (as uniform, one begins each instant), `log` (sizes and lives log-uniform), `guillotine` and `pinwheel`
(a rectangle cut edge to edge, or into five pieces that turn round a middle one: the best peak is its height; 4,096 x 2^20
if not given; a pinwheel of at most BUFFERS). Does not plan. Usage: plan_problem.py KIND BUFFERS SEED [WIDTHxHEIGHT]
"""

import math
import random
import sys

HEIGHT = 1 << 20
RECTANGLE = (1 << 12, HEIGHT)  # that is cut
MOST_FRUITLESS = 100_000  # cuts in a row that do nothing, before a rectangle is held for too small


def uniform(count, rng, longest=2000):
    for _ in range(count):
        start = rng.randrange(count)
        yield start, start + rng.randint(1, longest), rng.randint(1, HEIGHT)


def exponential(count, rng):
    for _ in range(count):
        start = rng.randrange(count)
        yield start, start + 1 + int(rng.expovariate(1 / 1000)), rng.randint(1, HEIGHT)


def even(count, rng):
    for start in range(count):
        yield start, start + rng.randint(1, 2000), rng.randint(1, HEIGHT)


def log(count, rng):
    for _ in range(count):
        start = rng.randrange(count)
        life = int(math.exp(rng.uniform(0, math.log(count / 10))))
        yield start, start + max(life, 1), int(2 ** rng.uniform(6, 24))


def cut(count, rng, pieces, rectangle):
    """Cuts large pieces likelier than small ones; `pieces` returns the parts of one, or None."""
    boxes = [(0, 0, *rectangle)]
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    more = 1 if pieces is two_pieces else 4  # that a cut adds
    fruitless = 0
    while len(boxes) + more <= count:
        chosen = max(rng.choices(range(len(boxes)), k=4), key=lambda i: area(boxes[i]))
        parts = pieces(boxes[chosen], rng)
        if parts is None:
            fruitless += 1
            if fruitless == MOST_FRUITLESS:
                sys.exit(f"plan_problem.py: no {count} pieces in {rectangle[0]} x {rectangle[1]}")
            continue
        fruitless = 0
        boxes[chosen:chosen + 1] = parts
    rng.shuffle(boxes)
    return [(left, right, top - bottom) for left, bottom, right, top in boxes]


def two_pieces(box, rng):
    left, bottom, right, top = box
    if rng.random() < 0.5:
        if right - left < 2:
            return None
        at = rng.randint(left + 1, right - 1)
        return [(left, bottom, at, top), (at, bottom, right, top)]
    if top - bottom < 2:
        return None
    at = rng.randint(bottom + 1, top - 1)
    return [(left, bottom, right, at), (left, at, right, top)]


def five_pieces(box, rng):
    left, bottom, right, top = box
    if right - left < 3 or top - bottom < 3:
        return None
    x1, x2 = sorted(rng.sample(range(left + 1, right), 2))
    y1, y2 = sorted(rng.sample(range(bottom + 1, top), 2))
    return [(left, bottom, x2, y1), (x2, bottom, right, y2), (x1, y2, right, top), (left, y1, x1, top), (x1, y1, x2, y2)]


def main():
    kinds = {
        "uniform": uniform,
        "short": lambda count, rng: uniform(count, rng, 200),
        "exponential": exponential,
        "even": even,
        "log": log,
    }
    cuts = {"guillotine": two_pieces, "pinwheel": five_pieces}
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in (cuts if len(sys.argv) == 5 else kinds | cuts):
        sys.exit(__doc__)
    kind, count, rng = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
    if kind in cuts:
        rectangle = tuple(int(side) for side in sys.argv[4].split("x")) if len(sys.argv) == 5 else RECTANGLE
        if len(rectangle) != 2:
            sys.exit(__doc__)
        buffers = cut(count, rng, cuts[kind], rectangle)
    else:
        buffers = kinds[kind](count, rng)
    print("id,lower,upper,size")
    for i, (lower, upper, size) in enumerate(buffers):
        print(f"{i},{lower},{upper},{size}")


if __name__ == "__main__":
    main()
