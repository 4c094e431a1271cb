#include "hub/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/quiet_thread.h"
#include "hub/http.h"
#include "hub/part_file.h"

namespace hone {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBlock = 1 << 20;  // bytes between copies to the file, and of its hashing

/// One file on its way. Guarded by the transfer's mutex, but for what is said otherwise.
struct FileState {
  enum class Stage { kWaiting, kOpening, kOpen, kDone };

  explicit FileState(const RepoFile& of) : file(of) {}

  const RepoFile file;
  Stage stage = Stage::kWaiting;
  std::unique_ptr<CacheLock> lock;
  std::unique_ptr<PartFile> part;
  std::vector<bool> claimed;
  size_t pieces_left = 0;
  bool has_ranges = true;  ///< false: the server sends the file from its beginning, whatever is asked for
  bool wrong_before = false;
  uint64_t counted = 0;         ///< bytes of it in the progress
  std::optional<Url> location;  ///< the store's address, until it fails

  std::mutex hashing;  ///< guards `hash`
  std::unique_ptr<BlobHash> hash;
};

/// Pieces [begin, end) of a file.
struct Claim {
  FileState* state = nullptr;
  size_t begin = 0, end = 0;
};

class Transfer {
 public:
  Transfer(const HubSettings& settings, const RepoCache& cache, const Repo& repo, const std::string& commit,
           const std::vector<RepoFile>& files, const TransferOptions& options)
      : settings_(settings), cache_(cache), repo_(repo), commit_(commit), options_(options) {
    for (const RepoFile& file : files) {
      states_.emplace_back(file);
      at_.total += file.size;
    }
    at_.files = files.size();
  }

  void run() {
    std::vector<std::thread> threads;
    const int count = static_cast<int>(std::min<size_t>(static_cast<size_t>(options_.connections), pieces_at_most()));
    for (int i = 0; i < count; ++i) https_.push_back(std::make_unique<HubHttp>(settings_));
    for (int i = 0; i < count; ++i)
      threads.push_back(quiet_thread([this, i] { work(*https_[static_cast<size_t>(i)]); }));
    try {
      watch();
    } catch (...) {
      fail(std::current_exception());
    }
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  size_t pieces_at_most() const {
    size_t pieces = 1;
    for (const FileState& state : states_) pieces += 1 + state.file.size / (8 << 20);
    return pieces;
  }

  void fail(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::move(failure);
      changed_.notify_all();
    }
    for (const auto& http : https_) http->cancel();
  }

  /// Reports the progress until all is done or something failed.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!failure_ && at_.files_done < at_.files) {
      changed_.wait_for(lock, std::chrono::milliseconds(200),
                        [&] { return failure_ || at_.files_done == at_.files || !notices_.empty(); });
      const TransferProgress at = at_;
      const std::deque<std::string> notices = std::exchange(notices_, {});
      lock.unlock();
      for (const std::string& notice : notices) {
        if (options_.notice) options_.notice(notice);
      }
      if (options_.progress) options_.progress(at);
      lock.lock();
    }
  }

  void note(const std::string& text) {
    const std::lock_guard lock(mutex_);
    notices_.push_back(text);
    changed_.notify_all();
  }

  void work(HubHttp& http) {
    try {
      while (const std::optional<Claim> claim = next_claim()) bring(http, *claim);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// The next pieces for a connection: of an open file, or of one that is opened for it. Waits while others open files
  /// or may give pieces back. Nothing at the end.
  std::optional<Claim> next_claim() {
    std::unique_lock lock(mutex_);
    while (!failure_) {
      bool waits = false;
      FileState* fresh = nullptr;
      for (FileState& state : states_) {
        if (state.stage == FileState::Stage::kOpen) {
          if (std::optional<Claim> claim = claim_of(state)) return claim;
        }
        waits = waits || state.stage == FileState::Stage::kOpen || state.stage == FileState::Stage::kOpening;
        if (state.stage == FileState::Stage::kWaiting && fresh == nullptr) fresh = &state;
      }
      if (fresh != nullptr) {
        fresh->stage = FileState::Stage::kOpening;
        lock.unlock();
        open(*fresh);
        finish_if_complete(*fresh);
        lock.lock();
      } else if (waits) {
        changed_.wait(lock);
      } else {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::optional<Claim> claim_of(FileState& state) {
    const size_t pieces = state.part->pieces();
    for (size_t i = 0; i < pieces; ++i) {
      if (state.claimed[i]) {
        // Without ranges one connection reads all the rest.
        if (!state.has_ranges && !state.part->done(i)) return std::nullopt;
        continue;
      }
      Claim claim{&state, i, i + 1};
      while (!state.has_ranges && claim.end < pieces && !state.claimed[claim.end]) ++claim.end;
      std::fill(state.claimed.begin() + static_cast<std::ptrdiff_t>(i),
                state.claimed.begin() + static_cast<std::ptrdiff_t>(claim.end), true);
      return claim;
    }
    return std::nullopt;
  }

  /// Takes the lock of a blob, and finds out what is there of it.
  void open(FileState& state) {
    auto guard = std::make_unique<CacheLock>(cache_.lock_file(state.file.etag()), [&] {
      note(fmt::format("another program downloads {}: waiting for it", state.file.path));
    });
    std::error_code error;
    const std::filesystem::path blob = cache_.blob(state.file.etag());
    const bool there =
        std::filesystem::is_regular_file(blob, error) && std::filesystem::file_size(blob, error) == state.file.size;
    std::unique_ptr<PartFile> part = there ? nullptr : std::make_unique<PartFile>(blob, state.file.size);
    const std::lock_guard lock(mutex_);
    state.lock = std::move(guard);
    state.part = std::move(part);
    if (there) {
      finish_counting(state);
      return;
    }
    start(state);
  }

  /// With the mutex.
  void start(FileState& state) {
    state.hash = std::make_unique<BlobHash>(state.file);
    state.claimed.assign(state.part->pieces(), false);
    state.pieces_left = 0;
    for (size_t i = 0; i < state.part->pieces(); ++i) {
      state.claimed[i] = state.part->done(i);
      state.pieces_left += state.part->done(i) ? 0 : 1;
    }
    count(state, state.part->bytes_done(), false);
    state.stage = FileState::Stage::kOpen;
    changed_.notify_all();
  }

  void count(FileState& state, uint64_t bytes, bool received) {
    state.counted += bytes;
    at_.done += bytes;
    if (received) at_.received += bytes;
  }

  void finish_counting(FileState& state) {
    at_.done += state.file.size - state.counted;
    state.counted = state.file.size;
    ++at_.files_done;
    state.lock.reset();
    state.part.reset();
    state.stage = FileState::Stage::kDone;
    changed_.notify_all();
  }

  /// Reads the pieces of a claim, again and again while some arrive.
  void bring(HubHttp& http, const Claim& claim) {
    FileState& state = *claim.state;
    uint64_t position = state.part->piece_begin(claim.begin);
    const uint64_t end = state.part->piece_end(claim.end - 1);
    size_t piece = claim.begin;
    for (int number = 1, refusals = 0; position < end;) {
      const uint64_t before = position;
      try {
        read_once(http, state, position, end, piece);
      } catch (const HubError& error) {
        if (error.kind != HubError::Kind::kRetry) throw;
        const bool refusal = error.of_store && error.status < 500 && error.status != 408 && error.status != 429;
        if (refusal && ++refusals > 3) throw;
        number = position > before ? 1 : number + 1;
        const double seconds = pause_before(number, error.after);
        if (number > options_.tries || seconds > 300) throw;
        if (number > 2 || seconds > 5)
          note(fmt::format("{}: {}; trying again in {:.0f} s", state.file.path, error.what(), seconds));
        if (!pause(seconds)) return;
      }
    }
    catch_up(state, false);
    finish_if_complete(state);
  }

  bool pause(double seconds) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return failure_ != nullptr; });
  }

  void read_once(HubHttp& http, FileState& state, uint64_t& position, uint64_t end, size_t& piece) {
    Url from = file_address(settings_, repo_, commit_, state.file.path), location;
    bool stored = false;
    {
      const std::lock_guard lock(mutex_);
      stored = state.location.has_value();
      if (stored) from = *state.location;
    }
    std::string block;
    const auto flush = [&] {
      if (block.empty()) return;
      state.part->write(position, block);
      position += block.size();
      size_t complete = piece;
      for (; complete < state.part->pieces() && state.part->piece_end(complete) <= position; ++complete) {
        state.part->note(complete);
      }
      const std::lock_guard lock(mutex_);
      count(state, block.size(), true);
      for (; piece < complete; ++piece, --state.pieces_left) state.part->mark(piece);
      block.clear();
    };
    const uint64_t first = position;
    try {
      const bool whole = http.get_range(
          from, first, end - first, state.file.size,
          [&](const HubHttp::FileHead& head) { check_head(state.file, head); },
          [&](std::string_view bytes) {
            block += bytes;
            if (block.size() >= kBlock || first + block.size() == end) flush();
          },
          location);
      flush();
      const std::lock_guard lock(mutex_);
      if (whole) state.has_ranges = false;
      if (!location.same_origin(settings_.endpoint)) state.location = location;
    } catch (const HubError&) {
      flush();
      const std::lock_guard lock(mutex_);
      if (stored) state.location.reset();
      throw;
    }
  }

  /// What the hub says of a file on the way to its bytes is what it listed.
  void check_head(const RepoFile& file, const HubHttp::FileHead& head) const {
    const auto differs = [&](const char* what, const std::string& says, const std::string& listed) {
      throw HubError(HubError::Kind::kRefused, fmt::format("the hub has another {} of {}: {}, and lists {}", what,
                                                           file.path, one_line(says.substr(0, 80)), listed));
    };
    if (!head.commit.empty() && head.commit != commit_) differs("commit", head.commit, commit_);
    if (head.size && *head.size != file.size)
      differs("size", fmt::format("{}", *head.size), fmt::format("{}", file.size));
    const bool is_hash = head.etag.size() == 40 || head.etag.size() == 64;
    if (is_hash && head.etag.size() == file.etag().size() && head.etag != file.etag()) {
      differs("hash", head.etag, file.etag());
    }
  }

  /// Hashes what has arrived without a gap; with `wait` all of it, else only if nobody else does it now.
  void catch_up(FileState& state, bool wait) {
    std::unique_lock hashing(state.hashing, std::defer_lock);
    if (wait) {
      hashing.lock();
    } else if (!hashing.try_lock()) {
      return;
    }
    std::string buffer;
    while (true) {
      uint64_t until = 0;
      {
        const std::lock_guard lock(mutex_);
        if (failure_) return;
        const PartFile& part = *state.part;
        for (size_t i = static_cast<size_t>(state.hash->bytes() / part.piece_bytes());
             i < part.pieces() && part.done(i); ++i) {
          until = part.piece_end(i);
        }
      }
      if (until <= state.hash->bytes()) return;
      while (state.hash->bytes() < until) {
        const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kBlock, until - state.hash->bytes()));
        state.hash->update(state.part->read(state.hash->bytes(), bytes, buffer));
      }
    }
  }

  /// The connection that brought the last piece checks the file and gives it its name.
  void finish_if_complete(FileState& state) {
    {
      const std::lock_guard lock(mutex_);
      if (state.pieces_left > 0 || state.stage != FileState::Stage::kOpen || failure_) return;
      state.stage = FileState::Stage::kOpening;  // no other does
    }
    finish(state);
  }

  void finish(FileState& state) {
    catch_up(state, true);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
    }
    const std::string hash = state.hash->digest();
    if (hash == state.file.etag()) {
      state.part->finish();
      const std::lock_guard lock(mutex_);
      finish_counting(state);
      return;
    }
    state.part->discard();
    if (std::exchange(state.wrong_before, true)) {
      throw UserError(fmt::format("the bytes of {} have the hash {}, and the hub lists {}", state.file.path, hash,
                                  state.file.etag()),
                      file_address(settings_, repo_, commit_, state.file.path).text(),
                      "they were read twice and thrown away: a proxy or mirror between here and the hub changes them");
    }
    note(fmt::format("the bytes of {} are damaged (their hash is wrong): reading them again", state.file.path));
    auto part = std::make_unique<PartFile>(cache_.blob(state.file.etag()), state.file.size);
    {
      const std::lock_guard lock(mutex_);
      at_.done -= state.counted;
      state.counted = 0;
      state.location.reset();
      state.part = std::move(part);
      start(state);
    }
    finish_if_complete(state);
  }

  const HubSettings& settings_;
  const RepoCache& cache_;
  const Repo& repo_;
  const std::string& commit_;
  const TransferOptions& options_;
  std::vector<std::unique_ptr<HubHttp>> https_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex:
  std::deque<FileState> states_;
  TransferProgress at_;
  std::deque<std::string> notices_;
  std::exception_ptr failure_;
};

}  // namespace

void transfer_files(const HubSettings& settings, const RepoCache& cache, const Repo& repo, const std::string& commit,
                    const std::vector<RepoFile>& files, const TransferOptions& options) {
  if (files.empty()) return;
  Transfer(settings, cache, repo, commit, files, options).run();
}

}  // namespace hone
