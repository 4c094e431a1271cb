#include "train/report/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "train/report/profile_report.h"

namespace hone {

namespace {

/// Lanes from top to bottom: steps, blocks, ops and collectives, in the order of ProfileKind; copies; then threads.
constexpr const char* kLanes[] = {
    "steps", "blocks", "ops", "collectives", "copies from peers", "copies from host", "copies to host"};
constexpr int kFirstThread = static_cast<int>(std::size(kLanes));
constexpr int kCollectives = static_cast<int>(ProfileKind::kCollective), kFirstCopies = kCollectives + 1;

constexpr std::string_view kTail = "\n]}\n";

int lane_of(const ProfileSpan& span) {
  constexpr std::string_view kCopies[] = {"peer copy", "from host", "to host"};
  if (span.kind == ProfileKind::kCollective) {
    const auto copies = std::find(std::begin(kCopies), std::end(kCopies), span.name);
    return copies == std::end(kCopies) ? kCollectives : kFirstCopies + static_cast<int>(copies - std::begin(kCopies));
  }
  return static_cast<int>(span.kind == ProfileKind::kWait ? ProfileKind::kOp : span.kind);
}

/// "step 3", "attention", "all-gather layer 3, 604 MB", "wait for layer 3"
std::string trace_name(const ProfileSpan& span) {
  switch (span.kind) {
    case ProfileKind::kStep:
    case ProfileKind::kBlock:
      return fmt::format("{} {}", span.name, span.index);
    case ProfileKind::kCollective:
      return fmt::format("{} {}, {}", span.name, span.pass, human_bytes(span.bytes));
    case ProfileKind::kWait:
      return fmt::format("{} {}", span.name, span.pass);
    case ProfileKind::kOp:
      return std::string(span.name);
  }
  HONE_ASSERT(false, "kind out of range");
}

std::string trace_category(const ProfileSpan& span) {
  if (span.kind == ProfileKind::kWait) return "wait";
  const bool numbered = span.kind == ProfileKind::kStep || span.kind == ProfileKind::kBlock;
  return std::string(numbered ? span.name : name_of(span.group));
}

/// Events as JSON text, one per line.
class Events {
 public:
  explicit Events(double offset) : offset_(offset) {}

  void name_lane(int lane) {
    const std::string name = lane < kFirstThread ? kLanes[lane] : fmt::format("thread {}", lane - kFirstThread);
    add({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"name", name}}}});
    add({{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"sort_index", lane}}}});
  }
  void span(const std::string& name, const std::string& category, int lane, double begin, double end, Json args) {
    Json event = {{"name", name}, {"cat", category}, {"ph", "X"}, {"ts", (offset_ + begin) * 1e6}};
    event.update({{"dur", (end - begin) * 1e6}, {"pid", 0}, {"tid", lane}});
    if (!args.empty()) event["args"] = std::move(args);
    add(event);
  }
  /// Adds a counter of the whole trace at its beginning.
  void counter(const char* name, int64_t value) {
    add({{"name", name}, {"ph", "C"}, {"ts", offset_ * 1e6}, {"pid", 0}, {"args", {{"count", value}}}});
  }
  const std::string& text() const { return text_; }

 private:
  void add(const Json& event) { text_ += (text_.empty() ? "\n" : ",\n") + event.dump(); }

  double offset_;
  std::string text_;
};

void add_spans(const Profile& profile, Events& events) {
  for (const ProfileSpan& span : profile.spans) {
    Json args = Json::object();
    if (span.kind == ProfileKind::kOp && !span.pass.empty()) args["pass"] = span.pass;
    if (span.bytes > 0) args["mb"] = span.bytes / 1e6;
    events.span(trace_name(span), trace_category(span), lane_of(span), span.begin, span.end, std::move(args));
  }
  for (const ThreadSpan& loop : profile.loops) {
    const ProfileSpan* op = loop.op >= 0 ? &profile.spans[static_cast<size_t>(loop.op)] : nullptr;
    events.span(op != nullptr ? op_name(*op) : "loop", std::string(op != nullptr ? name_of(op->group) : "loop"),
                kFirstThread + loop.thread, loop.begin, loop.end, {{"tasks", loop.tasks}});
  }
  if (profile.unrecorded_loops > 0) events.counter("unrecorded loops", profile.unrecorded_loops);
}

}  // namespace

TraceFile::TraceFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::remove(path_, error);
  file_ = create_new_file(path_);
  if (file_ < 0) {
    throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path_.string(),
                    "check the folder and its permissions");
  }
  write(std::string(kTraceBeginning));
}

TraceFile::~TraceFile() { close(file_); }

void TraceFile::add(const Profile& profile, double begin) {
  Events events(begin);
  named_.resize(static_cast<size_t>(kFirstThread + profile.threads));
  const auto name = [&](int lane) {
    if (!named_[static_cast<size_t>(lane)]) events.name_lane(lane);
    named_[static_cast<size_t>(lane)] = true;
  };
  for (int lane = 0; lane < kCollectives; ++lane) name(lane);
  for (const ProfileSpan& span : profile.spans) name(lane_of(span));
  for (int thread = 0; thread < profile.threads; ++thread) name(kFirstThread + thread);
  add_spans(profile, events);
  if (!empty_)
    write("," + events.text());
  else
    write(events.text());
  empty_ = false;
}

void TraceFile::write(const std::string& events) {
  const std::string text = events + std::string(kTail);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = pwrite(file_, text.data() + done, text.size() - done, end_ + static_cast<int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path_.string(),
                      "free some space, or profile fewer steps (profile_steps)");
    }
    done += static_cast<size_t>(written);
  }
  end_ += static_cast<int64_t>(events.size());
}

}  // namespace hone
