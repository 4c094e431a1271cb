// ModelThread: the thread that runs the passes of a served model, for requests that come from other threads.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "infer/generator.h"

namespace hone {

/// A sequence to generate. Everything is called on the model's thread.
struct ServedSequence {
  SequenceRequest request;
  std::function<bool()> unwanted;                         ///< nobody waits for it, or its time is over
  std::function<void(const std::exception_ptr&)> failed;  ///< the last call, in the place of on_end
};

struct ServedCounts {
  size_t running = 0, waiting = 0;
  int64_t sequences = 0, failed = 0;                ///< since the start
  int64_t prompt_tokens = 0, generated_tokens = 0;  ///< since the start
  int64_t found_tokens = 0;                         ///< GeneratedSequence::found, since the start
  int64_t put_back = 0;                             ///< GenerationSchedule::times_put_back
  int64_t pages = 0, used_pages = 0;                ///< for the layers that keep the most tokens; 0 without attention
};

class ModelThread {
 public:
  /// The generator must outlive this, and is used by its thread alone. `most_waiting`: beside the `most_sequences` of
  /// its slots.
  ModelThread(Generator& generator, size_t most_sequences, size_t most_waiting);
  /// Ends all sequences.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  /// Thread-safe. All of them, or false: too many wait.
  bool submit(std::vector<ServedSequence> sequences);
  ServedCounts counts() const;

 private:
  void run();
  void begin(ServedSequence sequence);
  void end_unwanted();
  void fail_all();
  /// Takes over what the generator says of itself.
  void count_use();
  void finished(bool failed);

  Generator& generator_;
  const size_t most_sequences_, most_waiting_;
  std::map<size_t, ServedSequence> running_;  // by number in the generator; of the thread alone
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ServedSequence> inbox_;  // guarded by the mutex, as the following are
  ServedCounts counts_;
  size_t in_slots_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace hone
