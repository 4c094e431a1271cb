#include "dist/transport/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "dist/transport/cpu_communicator.h"

namespace hone {

namespace {

/// Small, so that tests of small tensors need several rounds.
constexpr size_t kScratchBytes = 256 << 10;

struct MailItem {
  const std::byte* data;
  size_t bytes;
  int from;
};

/// Messages between ranks for one communicator.
struct Mail {
  explicit Mail(int count)
      : ranks(count), boxes(static_cast<size_t>(count * count)), unread(static_cast<size_t>(count)) {}
  std::deque<MailItem>& box(int from, int to) { return boxes[static_cast<size_t>(from * ranks + to)]; }

  int ranks;
  std::vector<std::deque<MailItem>> boxes;
  std::vector<int> unread;  // messages from each rank that have not been received
};

/// The state that the ranks share; the mutex protects all of it.
struct Group {
  explicit Group(int count) : size(count), texts(static_cast<size_t>(count)) {}
  /// The mail of communicator `number`.
  Mail& mail(int number) {
    while (static_cast<int>(mails.size()) <= number) mails.emplace_back(size);
    return mails[static_cast<size_t>(number)];
  }
  void throw_if_failed() const {
    if (!failure.empty()) throw Error(ExitCode::kDeviceFailed, failure, "", "");
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  int lost = 0;  // the rank that failed
  std::vector<std::function<void()>> callbacks;
  std::vector<std::string> texts, gathered;  // what exchange() passes on
  int arrived = 0;
  int64_t exchanges = 0;
  std::deque<Mail> mails;  // the addresses of elements stay valid
};

class ThreadControl : public Control {
 public:
  ThreadControl(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  std::vector<std::string> exchange(std::string_view mine) override {
    Group& group = *group_;
    std::unique_lock lock(group.mutex);
    group.throw_if_failed();
    group.texts[static_cast<size_t>(rank_)] = mine;
    const int64_t number = group.exchanges;
    if (++group.arrived == group.size) {
      group.arrived = 0;
      ++group.exchanges;
      group.gathered = group.texts;  // all ranks have read the last exchange's texts
      group.changed.notify_all();
    }
    group.changed.wait(lock, [&] { return group.exchanges != number || !group.failure.empty(); });
    if (group.exchanges == number) group.throw_if_failed();
    return group.gathered;
  }
  void at_step(int64_t) override {}
  int64_t begin_collective(const char*) override { return 0; }
  void end_collectives(int64_t) override {}
  std::unique_ptr<Transport> connect_memory() override;
  void fail(const std::string& reason) override {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(group_->mutex);
      if (!group_->failure.empty()) return;
      group_->failure = "rank " + std::to_string(rank_) + " failed: " + reason;
      group_->lost = rank_;
      callbacks = group_->callbacks;
      group_->changed.notify_all();
    }
    for (const auto& callback : callbacks) callback();
  }
  std::vector<int> lost() const override {
    const std::lock_guard lock(group_->mutex);
    return group_->failure.empty() ? std::vector<int>{} : std::vector<int>{group_->lost};
  }
  void on_end(std::function<void()> callback) override {
    {
      const std::lock_guard lock(group_->mutex);
      if (group_->failure.empty()) {
        group_->callbacks.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }
  void check() override {
    const std::lock_guard lock(group_->mutex);
    group_->throw_if_failed();
  }

 private:
  std::shared_ptr<Group> group_;
  int rank_, transports_ = 0;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Group> group, int rank, int number)
      : group_(std::move(group)), rank_(rank), number_(number) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  void send(int to, const std::byte* data, size_t bytes) override {
    const std::lock_guard lock(group_->mutex);
    Mail& mail = group_->mail(number_);
    mail.box(rank_, to).push_back({data, bytes, rank_});
    ++mail.unread[static_cast<size_t>(rank_)];
    group_->changed.notify_all();
  }
  void receive(int from, std::byte* data, size_t bytes) override { expected_.push_back({from, data, bytes}); }

  void wait() override {
    std::unique_lock lock(group_->mutex);
    while (true) {
      group_->throw_if_failed();
      if (take_arrived()) group_->changed.notify_all();
      if (expected_.empty() && group_->mail(number_).unread[static_cast<size_t>(rank_)] == 0) return;
      group_->changed.wait(lock);
    }
  }

 private:
  struct Expected {
    int from;
    std::byte* data;
    size_t bytes;
  };

  /// Copies arrived messages; returns whether there were any. The caller holds the mutex.
  bool take_arrived() {
    Mail& mail = group_->mail(number_);
    std::vector<Expected> later;
    for (const Expected& expected : expected_) {
      std::deque<MailItem>& box = mail.box(expected.from, rank_);
      if (box.empty()) {
        later.push_back(expected);
        continue;
      }
      const MailItem& message = box.front();
      HONE_ASSERT(message.bytes == expected.bytes, "the ranks' calls differ");
      if (message.bytes > 0) std::memcpy(expected.data, message.data, message.bytes);
      --mail.unread[static_cast<size_t>(message.from)];
      box.pop_front();
    }
    const bool some = later.size() < expected_.size();
    expected_ = std::move(later);
    return some;
  }

  std::shared_ptr<Group> group_;
  int rank_, number_;
  std::vector<Expected> expected_;
};

std::unique_ptr<Transport> ThreadControl::connect_memory() {
  return std::make_unique<ThreadTransport>(group_, rank_, transports_++);
}

/// Communicators of a rank have their own messages, so each may be used by another thread.
class ThreadCommunicator : public CpuCommunicator {
 public:
  explicit ThreadCommunicator(const std::shared_ptr<Control>& control)
      : CpuCommunicator(control, control->connect_memory(), kScratchBytes) {}

 protected:
  std::shared_ptr<Transport> lane() override { return control().connect_memory(); }
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_ranks(int count) {
  const auto group = std::make_shared<Group>(count);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < count; ++r) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(std::make_shared<ThreadControl>(group, r)));
  }
  return ranks;
}

void run_ranks(int count, const std::function<void(Communicator&)>& body) {
  const std::vector<std::unique_ptr<Communicator>> ranks = thread_ranks(count);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const auto& communicator : ranks) {
    threads.emplace_back([&, rank = communicator.get()] {
      try {
        body(*rank);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        rank->control().fail(reason_of(error));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace hone
