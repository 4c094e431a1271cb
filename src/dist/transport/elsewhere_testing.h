// For tests: ranks of which the second seems to be on another host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/control/control.h"
#include "dist/transport/transport.h"

namespace hone {

/// A rank's control, which must outlive this, with another host's name for rank 1 where ranks exchange their hosts and
/// sockets (dist/control/descriptor_exchange.h).
class SecondElsewhere : public Control {
 public:
  explicit SecondElsewhere(Control& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::string> exchange(std::string_view mine) override {
    std::vector<std::string> all = inner_.exchange(mine);
    if (all[1].find(" hone-") != std::string::npos) all[1] = "another-boot hone-1-0-0";
    return all;
  }
  void at_step(int64_t) override {}
  int64_t begin_collective(const char*) override { return 0; }
  void end_collectives(int64_t) override {}
  std::unique_ptr<Transport> connect_memory() override { return inner_.connect_memory(); }
  void fail(const std::string& reason) override { inner_.fail(reason); }
  void check() override { inner_.check(); }
  std::vector<int> lost() const override { return inner_.lost(); }
  void on_end(std::function<void()> callback) override { inner_.on_end(std::move(callback)); }

 private:
  Control& inner_;
};

}  // namespace hone
