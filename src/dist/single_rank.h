// SingleRank: a group of one, where every sum is there already.
#pragma once

#include "dist/communicator.h"

namespace hone {

class SingleRank : public Communicator {
 public:
  Control& control() const override { return control_; }
  void all_reduce_sum(Stream&, Tensor) override {}
  void reduce_scatter_sum(Stream&, Tensor, std::span<const Part>) override {}
  void all_gather(Stream&, Tensor, std::span<const Part>) override {}
  void broadcast(Stream&, Tensor, int) override {}
  void fork(Stream&) override {}
  void join(Stream&) override {}
  void finish(Stream&) override {}

 private:
  mutable SingleControl control_;
};

}  // namespace hone
