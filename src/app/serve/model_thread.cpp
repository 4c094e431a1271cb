#include "app/serve/model_thread.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/quiet_thread.h"

namespace hone {

ModelThread::ModelThread(Generator& generator, size_t most_sequences, size_t most_waiting)
    : generator_(generator), most_sequences_(most_sequences), most_waiting_(most_waiting) {
  if (!generator.cache().groups.empty()) counts_.pages = generator.cache().groups[generator.cache().largest()].pages;
  thread_ = quiet_thread([this] { run(); });
}

ModelThread::~ModelThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool ModelThread::submit(std::vector<ServedSequence> sequences) {
  {
    const std::lock_guard lock(mutex_);
    if (counts_.running + counts_.waiting + sequences.size() > most_sequences_ + most_waiting_) return false;
    counts_.waiting += sequences.size();
    std::move(sequences.begin(), sequences.end(), std::back_inserter(inbox_));
  }
  changed_.notify_one();
  return true;
}

ServedCounts ModelThread::counts() const {
  const std::lock_guard lock(mutex_);
  ServedCounts counts = counts_;
  const size_t all = counts.running + counts.waiting;  // the generator's own order gives them slots
  counts.running = std::min(all, in_slots_);
  counts.waiting = all - counts.running;
  return counts;
}

void ModelThread::count_use() {
  const GenerationSchedule& schedule = generator_.schedule();
  const std::lock_guard lock(mutex_);
  in_slots_ = static_cast<size_t>(schedule.running());
  counts_.put_back = schedule.times_put_back();
  if (!generator_.cache().groups.empty()) counts_.used_pages = schedule.used_pages(generator_.cache().largest());
}

void ModelThread::run() {
  while (true) {
    std::deque<ServedSequence> arrived;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !inbox_.empty() || !running_.empty(); });
      if (ending_) break;
      arrived.swap(inbox_);
      counts_.waiting -= arrived.size();
      counts_.running += arrived.size();
    }
    for (ServedSequence& sequence : arrived) begin(std::move(sequence));
    end_unwanted();
    try {
      generator_.run_pass();
    } catch (...) {
      fail_all();
    }
    count_use();
  }
  generator_.end_all();
}

void ModelThread::begin(ServedSequence sequence) {
  SequenceRequest request = std::move(sequence.request);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  auto on_token = std::move(request.on_token);
  request.on_token = [this, on_token = std::move(on_token)](const GeneratedToken& token) {
    {
      const std::lock_guard lock(mutex_);
      ++counts_.generated_tokens;
    }
    return on_token(token);
  };
  auto number = std::make_shared<size_t>();
  auto on_end = std::move(request.on_end);
  request.on_end = [this, number, on_end = std::move(on_end)](const GeneratedSequence& result) {
    const auto at = running_.find(*number);
    if (at == running_.end()) return;  // it has failed
    running_.erase(at);
    finished(false);
    {
      const std::lock_guard lock(mutex_);
      counts_.found_tokens += result.found;
    }
    on_end(result);
  };
  try {
    *number = generator_.begin(std::move(request));
  } catch (...) {
    finished(true);
    sequence.failed(std::current_exception());
    return;
  }
  running_.emplace(*number, std::move(sequence));
  const std::lock_guard lock(mutex_);
  ++counts_.sequences;
  counts_.prompt_tokens += prompt_tokens;
}

void ModelThread::end_unwanted() {
  std::vector<size_t> unwanted;
  for (const auto& [number, sequence] : running_) {
    if (sequence.unwanted()) unwanted.push_back(number);
  }
  for (const size_t number : unwanted) generator_.end(number);
}

void ModelThread::fail_all() {
  const std::exception_ptr error = std::current_exception();
  for (auto& [number, sequence] : std::exchange(running_, {})) {
    finished(true);
    sequence.failed(error);
  }
  generator_.end_all();
}

void ModelThread::finished(bool failed) {
  const std::lock_guard lock(mutex_);
  --counts_.running;
  counts_.failed += failed;
}

}  // namespace hone
