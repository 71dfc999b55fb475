// Residency sets, and the sets of a queue.
#include "standin/metal/state.hpp"

namespace cistern::standin::metal {
namespace {

SetDescriptor* set_descriptor_alloc(Class*, Sel) {
  const Guard guard;
  return make<SetDescriptor>();
}

ResidencySet* device_new_set(Device* self, Sel, SetDescriptor* descriptor, void** error) {
  const Guard guard;
  if (descriptor == nullptr) violation("newResidencySetWithDescriptor: no descriptor");
  if (error != nullptr) *error = nullptr;
  return make<ResidencySet>(self);
}

void set_add(ResidencySet* self, Sel, Object* allocation) {
  const Guard guard;
  if (allocation_size(allocation) == 0) return;
  const bool there = self->committed.contains(allocation) && !self->removed.contains(allocation);
  if (there || self->added.contains(allocation)) return violation("addAllocation: it is in the set already");
  if (self->removed.erase(allocation) == 0) self->added.emplace(allocation, Strong<Object>(allocation));
}

void set_remove(ResidencySet* self, Sel, Object* allocation) {
  const Guard guard;
  if (self->added.erase(allocation) != 0) return;
  if (!self->committed.contains(allocation) || !self->removed.insert(allocation).second) {
    violation("removeAllocation: it is not in the set");
  }
}

void set_commit(ResidencySet* self, Sel) {
  const Guard guard;
  for (Object* const allocation : self->removed) self->committed.erase(allocation);
  self->removed.clear();
  self->committed.merge(self->added);
  self->added.clear();
}

void set_request(ResidencySet* self, Sel) {
  const Guard guard;
  if (!self->added.empty() || !self->removed.empty())
    violation("requestResidency: staged changes were not committed before");
  self->requested = true;
}

void set_end(ResidencySet* self, Sel) {
  const Guard guard;
  self->requested = false;
}

UInt set_count(ResidencySet* self, Sel) {
  const Guard guard;
  return self->committed.size();
}

void queue_add_set(Queue* self, Sel, ResidencySet* set) {
  const Guard guard;
  for (const Strong<ResidencySet>& known : self->sets) {
    if (known.get() == set) return violation("addResidencySet: the queue has it already");
  }
  if (self->sets.size() == kSetsPerQueue) return violation("addResidencySet: a queue takes 32 sets");
  self->sets.emplace_back(set);
  ++set->queues;
}

void queue_remove_set(Queue* self, Sel, ResidencySet* set) {
  const Guard guard;
  for (auto at = self->sets.begin(); at != self->sets.end(); ++at) {
    if (at->get() != set) continue;
    --set->queues;
    self->sets.erase(at);
    return;
  }
  violation("removeResidencySet: the queue does not have it");
}

void destroy_set(Object* object) {
  state().residency.erase(static_cast<ResidencySet*>(object));
  destroy<ResidencySet>(object);
}

}  // namespace

SetDescriptor::SetDescriptor() : Object(find_class("MTLResidencySetDescriptor")) {}
ResidencySet::ResidencySet(Device* d) : Object(find_class("MTLResidencySet")), device(d) {
  state().residency.insert(this);
}

void add_residency_classes() {
  find_class("MTLDevice")->methods[intern("newResidencySetWithDescriptor:error:")] = {imp(&device_new_set), true};
  Class* const queue = find_class("MTLCommandQueue");
  queue->methods[intern("addResidencySet:")] = {imp(&queue_add_set)};
  queue->methods[intern("removeResidencySet:")] = {imp(&queue_remove_set)};
  add_class("MTLResidencySetDescriptor", &destroy<SetDescriptor>, with_common({}),
            {{"alloc", imp(&set_descriptor_alloc)}});
  add_class("MTLResidencySet", &destroy_set,
            with_common({{"addAllocation:", imp(&set_add)},
                         {"removeAllocation:", imp(&set_remove)},
                         {"commit", imp(&set_commit)},
                         {"requestResidency", imp(&set_request)},
                         {"endResidency", imp(&set_end)},
                         {"allocationCount", imp(&set_count)}}));
}

}  // namespace cistern::standin::metal
