// The nodes of a heap: split, merge, and the two calls of the steady state, allocate from mapped memory and free.
// Neither asks the backing for anything but the order of streams. Under the device's lock.
#include "core/page_heap.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/page_heap_impl.hpp"

namespace cistern::core {

PageHeap::Impl::Impl(PageHeap& self_, HeapGroup::Impl& group_, Backing& backing_, StreamIndex lowest_)
    : self(self_),
      group(group_),
      backing(backing_),
      cell_bytes(group_.config.cell_bytes),
      cell_shift(static_cast<unsigned>(std::countr_zero(cell_bytes))),
      lowest(lowest_),
      range_cells(static_cast<std::uint32_t>(group_.config.range_bytes / cell_bytes)),
      cell_piece(range_cells),
      cell_node(range_cells) {
  assert(std::has_single_bit(cell_bytes) && range_cells > 0 && group.config.alignment >= 64);
  group.nodes.reserve(1);
  first = group.nodes.take();
  *first = {};
  first->heap = &self;
  first->size = std::uint64_t{range_cells} * cell_bytes;
  first->state = NodeState::gap;
  link_free(first);
  note_start(first);
}

void PageHeap::Impl::link_free(HeapNode* node) {
  if (node->state == NodeState::run) runs.insert(node);
  if (node->state == NodeState::gap) gaps.insert(node);
}

void PageHeap::Impl::unlink_free(HeapNode* node) {
  if (node->state == NodeState::run) runs.remove(node);
  if (node->state == NodeState::gap) gaps.remove(node);
}

void PageHeap::Impl::note_start(HeapNode* node) {
  HeapNode*& entry = cell_node[node->offset >> cell_shift];
  if (entry == nullptr || entry->offset < node->offset) entry = node;
}

void PageHeap::Impl::forget_start(HeapNode* node) {
  const std::uint64_t cell = node->offset >> cell_shift;
  if (cell_node[cell] != node) return;
  HeapNode* before = node->prev;
  cell_node[cell] = before != nullptr && before->offset >> cell_shift == cell ? before : nullptr;
}

// Whether no live byte is in the piece.
bool PageHeap::Impl::is_free(const PieceInfo& piece) const {
  const HeapNode* node = node_of(piece);
  return node->state == NodeState::run && node->offset + node->size >= stretch_of(piece).end;
}

HeapNode* PageHeap::Impl::node_at(std::uint64_t offset) const {
  std::uint64_t cell = offset >> cell_shift;
  while (cell_node[cell] == nullptr) --cell;  // The first node starts in cell 0.
  HeapNode* node = cell_node[cell];
  while (node->offset > offset) node = node->prev;
  while (node->offset + node->size <= offset) node = node->next;
  return node;
}

// Cuts the node in two at `at`; both halves keep the state and are in no bin. Returns the second. pre: room for a node.
HeapNode* PageHeap::Impl::split(HeapNode* node, std::uint64_t at) {
  HeapNode* right = group.nodes.take();
  right->heap = &self;
  right->block = nullptr;
  right->state = node->state;
  right->freed = node->freed;
  right->offset = at;
  right->size = node->offset + node->size - at;
  right->prev = node;
  right->next = node->next;
  if (node->next != nullptr) node->next->prev = right;
  node->next = right;
  node->size = at - node->offset;
  clip_freed(node);
  clip_freed(right);
  note_start(right);
  return right;
}

// The node, in no bin, leaves the list; a neighbour takes its bytes.
void PageHeap::Impl::drop(HeapNode* node) {
  forget_start(node);
  (node->prev != nullptr ? node->prev->next : first) = node->next;
  if (node->next != nullptr) node->next->prev = node->prev;
  group.nodes.give(node);
}

// The next node, in no bin, becomes part of this one.
void PageHeap::Impl::absorb_next(HeapNode* node) {
  node->size += node->next->size;
  node->freed.join(node->next->freed);
  drop(node->next);
}

// Joins a free node, in no bin, with neighbours of its state and puts it in its bin.
HeapNode* PageHeap::Impl::merge(HeapNode* node) {
  if (node->state != NodeState::stale) {
    if (HeapNode* next = node->next; next != nullptr && next->state == node->state) {
      unlink_free(next);
      absorb_next(node);
    }
    if (HeapNode* prev = node->prev; prev != nullptr && prev->state == node->state) {
      unlink_free(prev);
      absorb_next(prev);
      node = prev;
    }
  }
  link_free(node);
  return node;
}

// Gives the cells, all of them in one free node, another free state. Of a run: who freed its memory. pre: room for two
// nodes.
HeapNode* PageHeap::Impl::change_state(Span cells, NodeState state, const Freed& freed) {
  const std::uint64_t begin = std::uint64_t{cells.first} << cell_shift;
  const std::uint64_t end = std::uint64_t{cells.last} << cell_shift;
  HeapNode* node = node_at(begin);
  assert(node->state != NodeState::live && node->offset + node->size >= end);
  unlink_free(node);
  if (node->offset + node->size > end) link_free(split(node, end));
  if (node->offset < begin) {
    HeapNode* left = node;
    node = split(left, begin);
    link_free(left);
  }
  node->state = state;
  node->freed = freed;
  return merge(node);
}

// A new node for `bytes` at the start of a run, which shrinks. pre: room for one.
HeapNode* PageHeap::Impl::cut_front(HeapNode* run, std::uint64_t bytes) {
  HeapNode* node = group.nodes.take();
  node->heap = &self;
  node->offset = run->offset;
  node->size = bytes;
  node->prev = run->prev;
  node->next = run;
  (run->prev != nullptr ? run->prev->next : first) = node;
  run->prev = node;
  const std::uint64_t cell = run->offset >> cell_shift;
  run->offset += bytes;
  runs.resize(run, run->size - bytes);
  clip_freed(run);
  if (run->offset >> cell_shift != cell) {
    if (cell_node[cell] == run) cell_node[cell] = node;
    note_start(run);
  }
  return node;
}

// The same at its end.
HeapNode* PageHeap::Impl::cut_back(HeapNode* run, std::uint64_t bytes) {
  HeapNode* node = group.nodes.take();
  node->heap = &self;
  node->offset = run->offset + run->size - bytes;
  node->size = bytes;
  node->prev = run;
  node->next = run->next;
  if (run->next != nullptr) run->next->prev = node;
  run->next = node;
  runs.resize(run, run->size - bytes);
  clip_freed(run);
  note_start(node);
  return node;
}

// Makes the place, `bytes` of a run, a live node; what is left of the run stays free. Throws std::bad_alloc, with
// nothing changed.
HeapNode* PageHeap::Impl::carve(const Place& place, std::uint64_t bytes, StreamIndex stream) {
  group.ledger.know(stream);  // So that no free fails.
  group.nodes.reserve(2);
  free_cells -= place.free_cells;
  HeapNode* run = place.node;
  const std::uint64_t offset = place.offset;
  HeapNode* node = run;
  if (offset + bytes == run->offset + run->size && offset != run->offset) {
    node = cut_back(run, bytes);
  } else if (bytes != run->size) {
    if (offset != run->offset) {
      runs.remove(run);
      HeapNode* const right = split(run, offset);
      runs.insert(run);
      runs.insert(right);
      run = right;
    }
    node = cut_front(run, bytes);
  } else {
    runs.remove(run);
  }
  node->state = NodeState::live;
  node->block = nullptr;
  node->stream = stream;
  node->idle = false;
  group.gauge.live += bytes;
  group.gauge.note_live();
  return node;
}

// The live node becomes a part of the runs beside it, or a run.
void PageHeap::Impl::free(HeapNode* node) {
  const Freed freed = group.ledger.free(node->stream, stretch_of(*node));
  HeapNode* const prev = node->prev;
  HeapNode* const next = node->next;
  const bool joins_prev = prev != nullptr && prev->state == NodeState::run;
  const bool joins_next = next != nullptr && next->state == NodeState::run;
  const Stretch joined{(joins_prev ? prev : node)->offset, stretch_of(joins_next ? *next : *node).end};
  free_cells += free_cells_in(joined, cells_of(node->offset, node->size));
  if (joins_prev) {
    prev->freed.join(freed);
    std::uint64_t size = prev->size + node->size;
    drop(node);
    if (joins_next) {
      runs.remove(next);
      prev->freed.join(next->freed);
      size += next->size;
      drop(next);
    }
    runs.resize(prev, size);
  } else if (joins_next) {
    // The run takes the place of the node.
    next->freed.join(freed);
    const std::uint64_t size = next->size + node->size;
    forget_start(next);
    next->offset = node->offset;
    drop(node);
    note_start(next);
    runs.resize(next, size);
  } else {
    node->state = NodeState::run;
    node->freed = freed;
    runs.insert(node);
  }
}

PageHeap::PageHeap(HeapGroup& group, Backing& backing, StreamIndex lowest)
    : impl_(std::make_unique<Impl>(*this, *group.impl_, backing, lowest)) {}
PageHeap::~PageHeap() = default;

std::uint64_t PageHeap::left_at(std::uint64_t offset, std::uint64_t bytes, StreamIndex stream) const {
  const HeapNode* run = impl_->node_at(offset);
  const bool fits = run->state == NodeState::run && run->offset + run->size - offset >= bytes;
  if (!fits || impl_->pin_cells_in(*run, offset, bytes) != 0) return UINT64_MAX;
  return run->size - bytes +
         (impl_->group.ledger.ready(stream, run->freed, {offset, offset + bytes}) ? 0 : Impl::kWait);
}

bool PageHeap::any_live() const {
  const HeapNode* node = impl_->first;
  while (node != nullptr && node->state != NodeState::live) node = node->next;
  return node != nullptr;
}

const HeapNode* PageHeap::occupant(std::uint64_t offset, std::uint64_t bytes) const {
  const HeapNode* node = impl_->node_at(offset);
  while (node != nullptr && node->offset < offset + bytes && node->state != NodeState::live) node = node->next;
  return node != nullptr && node->offset < offset + bytes ? node : nullptr;
}

HeapNode* PageHeap::allocate_at(std::uint64_t offset, std::uint64_t bytes, StreamIndex stream) {
  if (left_at(offset, bytes, stream) == UINT64_MAX) return nullptr;
  HeapNode* const run = impl_->node_at(offset);
  const bool ordered = impl_->group.order(stream, run->freed, {offset, offset + bytes}, impl_->backing);
  return ordered ? impl_->carve(run, offset, bytes, stream) : nullptr;
}

HeapNode* PageHeap::allocate(std::uint64_t bytes, std::uint64_t alignment, StreamIndex stream) {
  HeapNode* node = allocate_mapped(bytes, alignment, stream);
  return node != nullptr ? node : impl_->grow(bytes, alignment, stream);
}

void PageHeap::free(HeapNode* node) {
  assert(node->state == NodeState::live && node->heap == this);
  HeapGauge& gauge = impl_->group.gauge;
  gauge.live -= node->size;
  if (node->idle) gauge.idle -= node->size;
  impl_->free(node);
}

void PageHeap::for_each_piece(const std::function<void(Piece piece, bool live)>& visit) const {
  const PieceTable& pieces = impl_->group.pieces;
  for (PieceTable::Index i = 1; i < pieces.slots(); ++i) {
    if (pieces[i].heap == this) visit(pieces[i].id, impl_->held || !impl_->is_free(pieces[i]));
  }
  for (const StaleAddress& stale : impl_->group.stale) {
    if (stale.leaving && stale.node->heap == this) visit(stale.piece, false);
  }
}

}  // namespace cistern::core
