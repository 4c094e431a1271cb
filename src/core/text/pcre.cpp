#include "core/text/pcre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>
#include <string>

namespace hone {

namespace {

constexpr uint32_t kMostHeapKib = 256 * 1024;  // for one match

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : ""); }

}  // namespace

void Pcre::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void PcreMatcher::FreeContext::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}
void PcreMatcher::FreeData::operator()(pcre2_real_match_data_8* data) const { pcre2_match_data_free(data); }

Pcre::Pcre(std::string_view pattern, uint32_t flags, Engine engine) {
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(
      pcre2_compile(units(pattern), pattern.size(), flags | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (!code_) throw PcreError(message_of(error) + " at byte " + std::to_string(offset));
  // Without JIT support the interpreter is used.
  if (engine == Engine::kJit) pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

Pcre Pcre::of_user(std::string_view pattern) { return Pcre(pattern, PCRE2_UTF | PCRE2_UCP, Engine::kInterpreter); }

size_t Pcre::groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

PcreMatcher::PcreMatcher(const Pcre& expression, uint32_t most_steps)
    : expression_(expression),
      limits_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create_from_pattern(expression.code_.get(), nullptr)) {
  if (!limits_ || !data_) throw std::bad_alloc();
  pcre2_set_heap_limit(limits_.get(), kMostHeapKib);
  set_most_steps(most_steps);
}

void PcreMatcher::set_most_steps(uint32_t steps) { pcre2_set_match_limit(limits_.get(), steps); }

std::optional<PcreMatcher::Range> PcreMatcher::find(std::string_view text, size_t from, uint32_t flags) {
  const auto match = [&](uint32_t more) {
    return pcre2_match(expression_.code_.get(), units(text), text.size(), from, flags | more | PCRE2_NO_UTF_CHECK,
                       data_.get(), limits_.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result == PCRE2_ERROR_MATCHLIMIT) throw PcreStepsError(message_of(result));
  if (result < 0) throw PcreError(message_of(result));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
  return Range{range[0], range[1]};
}

std::vector<PcreMatcher::Range> PcreMatcher::match() const {
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
  std::vector<Range> ranges;
  for (size_t i = 0; i <= expression_.groups(); ++i) {
    const bool unset = ends[2 * i] == PCRE2_UNSET || ends[2 * i + 1] < ends[2 * i];
    ranges.push_back(unset ? Range{0, 0} : Range{ends[2 * i], ends[2 * i + 1]});
  }
  return ranges;
}

std::vector<std::vector<PcreMatcher::Range>> PcreMatcher::find_all(std::string_view text) {
  std::vector<std::vector<Range>> matches;
  std::optional<Range> last;
  while (true) {
    const bool was_empty = last && last->size() == 0;
    last = find(text, last ? last->end : 0, was_empty ? PCRE2_NOTEMPTY_ATSTART : 0);
    if (!last) return matches;
    if (last->begin > last->end) throw PcreError("a match begins after its end (\\K in a lookaround)");
    matches.push_back(match());
  }
}

}  // namespace hone
