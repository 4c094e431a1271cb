#include "infer/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "core/base/aligned.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/memory/arena.h"
#include "ops/argmax/argmax.h"
#include "ops/cast/cast.h"
#include "session/device_facts.h"

namespace hone {

namespace {

/// Bytes of `count` tokens or indices.
size_t aligned_indices(int64_t count) {
  return aligned(static_cast<size_t>(count) * sizeof(int32_t), Arena::kAlignment);
}

/// A row of logits in float32, in place or in `scratch`; thread-safe with one scratch per thread.
std::span<float> logits_row(PassResult& logits, size_t row, size_t vocab_size, std::vector<float>& scratch) {
  if (auto* exact = std::get_if<std::vector<float>>(&logits)) {
    return std::span(*exact).subspan(row * vocab_size, vocab_size);
  }
  const auto begin = std::get<std::vector<BFloat16>>(logits).begin() + static_cast<std::ptrdiff_t>(row * vocab_size);
  scratch.assign(begin, begin + static_cast<std::ptrdiff_t>(vocab_size));
  return scratch;
}

}  // namespace

/// Device memory of the cache, and of the inputs and results of a pass.
struct Generator::Buffers {
  Buffers(const Decoder& decoder, Device device, const GeneratorOptions& options, const CachePlan& cache)
      : plan(cache),
        max_tokens(options.max_prefill_tokens + options.max_sequences),
        max_sequences(options.max_sequences),
        inputs(device, 2 * aligned_indices(max_tokens) + 3 * aligned_indices(max_sequences + 1) +
                           plan.groups.size() * aligned_indices(max_sequences * plan.max_pages)),
        results(device,
                aligned_indices(max_sequences) +
                    static_cast<size_t>(max_sequences * decoder.config().vocab_size) * size_of(decoder.dtype())),
        logits_shape{max_sequences, decoder.config().vocab_size},
        logits_dtype(decoder.dtype()) {
    for (const CachePlan::Layer& layer : plan.layers) {
      std::vector<Tensor>& tensors = layers.emplace_back();
      for (const CacheTensor& tensor : layer.tensors) {
        cache_memory.emplace_back(device, static_cast<size_t>(tensor.shape.numel()) * size_of(tensor.dtype));
        tensors.push_back(cache_memory.back().tensor(tensor.shape, tensor.dtype));
      }
    }
  }

  /// The inputs of a pass with these sizes.
  DeviceBatch batch(int64_t tokens, int64_t sequences, int64_t rows, int64_t max_seqlen) {
    HONE_ASSERT(tokens <= max_tokens && sequences <= max_sequences && rows <= max_sequences);
    size_t offset = 0;
    const auto next = [&](int64_t count, int64_t most) {
      const Tensor tensor = inputs.tensor({count}, DType::kI32, offset);
      offset += aligned_indices(most);
      return tensor;
    };
    DeviceBatch result;
    result.tokens = tokens;
    result.documents = sequences;
    result.max_seqlen = max_seqlen;
    result.input_ids = next(tokens, max_tokens);
    result.positions = next(tokens, max_tokens);
    result.cu_seqlens = next(sequences + 1, max_sequences + 1);
    result.rows = next(rows, max_sequences + 1);
    lengths = next(sequences, max_sequences + 1);
    pages.clear();
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      const Tensor table = next(sequences * plan.max_pages, max_sequences * plan.max_pages);
      pages.push_back(table.reshaped({sequences, plan.max_pages}));
    }
    return result;
  }

  /// The results of a pass.
  Tensor ids(int64_t rows) const { return results.tensor({rows}, DType::kI32); }
  Tensor logits(int64_t rows) const {
    return results.tensor(logits_shape, logits_dtype, aligned_indices(max_sequences)).rows(0, rows);
  }

  /// The cache of the first N slots, for a pass whose inputs batch() has given.
  DecoderCache slots(int64_t sequences) const {
    DecoderCache result;
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::optional<size_t> group = plan.layers[i].group;
      std::vector<Tensor>& tensors = result.layers.emplace_back();
      for (const Tensor& tensor : layers[i]) tensors.push_back(group ? tensor : tensor.rows(0, sequences));
      result.pages.push_back(group ? pages[*group] : Tensor());
    }
    result.lengths = lengths;
    return result;
  }

  const CachePlan& plan;
  int64_t max_tokens, max_sequences;
  Buffer inputs, results;
  Shape logits_shape;
  DType logits_dtype;
  std::vector<Buffer> cache_memory;
  std::vector<std::vector<Tensor>> layers;  // tensors of the cache
  Tensor lengths;                           // inputs of a pass
  std::vector<Tensor> pages;                // the same, by group
};

/// Lists the uses of groups in a pass, which are the same in every pass.
class Generator::UseRecorder final : public GroupObserver {
 public:
  explicit UseRecorder(std::vector<GroupUse>& uses) : uses_(uses) {}
  void acquired(const Context&, const ParameterGroup& group, Use use) override { uses_.push_back({&group, use, true}); }
  void released(const Context&, const ParameterGroup& group, Use use) override {
    uses_.push_back({&group, use, false});
  }

 private:
  std::vector<GroupUse>& uses_;
};

Generator::Generator(PassCompanions& companions, const GeneratorOptions& options)
    : companions_(companions),
      decoder_(companions.decoder()),
      stream_(companions.stream()),
      options_(options),
      passes_(companions.runner()),
      context_(passes_.context()),
      graphs_(stream_, companions.recordable() ? options.cuda_graphs : GraphUse::kNever,
              [this] { return decoder_.values_arrived(); }),
      cache_(decoder_, options),
      scratch_(static_cast<size_t>(stream_.pool().size())) {
  HONE_ASSERT(options_.max_sequences >= 1 && options_.max_length >= 2 && options_.max_prefill_tokens >= 1);
  HONE_ASSERT(options_.cache_tokens == 0 || options_.cache_tokens >= options_.max_length);
  HONE_ASSERT(!options_.keep_cache || (options_.max_sequences == 1 && ranks() == 1));
  HONE_ASSERT(options_.deals_prompts || !companions.spreads_experts());
  options_.max_prefill_tokens =
      std::min(options_.max_prefill_tokens, options_.max_sequences * (options_.max_length - 1));
  buffers_ = std::make_unique<Buffers>(decoder_, stream_.device(), options_, cache_);
  measure_passes();
  passes_.reserve();
  companions_.connect();
  schedule_ = std::make_unique<GenerationSchedule>(
      ScheduleLimits{.max_sequences = options_.max_sequences,
                     .max_length = options_.max_length,
                     .max_prefill_tokens = options_.max_prefill_tokens,
                     .pages = cache_.groups,
                     .shares_pages = !options_.keep_cache && cache_.pages_hold_all()});
}

void Generator::measure_passes() {
  constexpr int64_t kLeast = 512;            // prompt tokens: fewer save little
  constexpr size_t kRoom = size_t{1} << 29;  // for what libraries and graphs take later
  const Device device = stream_.device();
  UseRecorder recorder(uses_);
  plans_.resize(static_cast<size_t>(options_.variants));
  for (;; options_.max_prefill_tokens /= 2) {
    const int64_t prompts = options_.max_prefill_tokens, sequences = options_.max_sequences;
    const DeviceBatch largest = buffers_->batch(prompts + sequences, sequences, sequences, prompts);
    const Part part(companions_, companions_.largest(largest.tokens), &recorder);
    passes_.measure([&] {
      for (int variant = options_.variants - 1; variant >= 0; --variant) {
        use_variant(variant);
        uses_.clear();
        forward(part, largest, Wanted::kNothing);
      }
    });
    // Ranks with spread experts exchange passes of one size.
    if (device.kind == DeviceKind::kCpu || companions_.spreads_experts() || prompts < 2 * kLeast) return;
    if (passes_.memory().bytes() + kRoom <= available_memory(device)) return;
  }
}

Generator::~Generator() {
  try {
    passes_.synchronize();  // queued work reads the buffers
  } catch (const std::exception&) {
    // The failure has been reported to those that wait for the stream; the buffers are unused in any case.
  }
}

void Generator::forward(const Part& part, const DeviceBatch& batch, Wanted wanted) {
  DecoderCache cache = buffers_->slots(batch.documents);
  Forward call;
  call.batch = &batch;
  call.cache = &cache;
  call.exchange = part.exchange();
  Tape tape = passes_.tape(plans_[static_cast<size_t>(variant_)]);
  const Tensor logits = tape.data(decoder_.logits(tape, call, batch.rows));
  const int64_t rows = batch.rows.shape[0];
  if (wanted == Wanted::kIds) argmax(context_, {.x = logits, .ids = buffers_->ids(rows)});
  if (wanted == Wanted::kLogits) copy(context_, logits, buffers_->logits(rows));
}

PassResult Generator::run(const Part& part, const GenerationPass& pass, Wanted wanted) {
  const auto size = [](const auto& values) { return static_cast<int64_t>(values.size()); };
  const int64_t rows = size(pass.rows);
  const DeviceBatch batch = buffers_->batch(size(pass.input_ids), size(pass.lengths), rows, pass.max_seqlen);
  stream_.upload(batch.input_ids, pass.input_ids);
  stream_.upload(batch.positions, pass.positions);
  stream_.upload(batch.cu_seqlens, pass.cu_seqlens);
  stream_.upload(batch.rows, pass.rows);
  stream_.upload(buffers_->lengths, pass.lengths);
  for (size_t group = 0; group < pass.pages.size(); ++group) {
    stream_.upload(buffers_->pages[group], pass.pages[group]);
  }
  graphs_.run({batch.tokens, batch.documents, rows, batch.max_seqlen, static_cast<int64_t>(wanted), pass.variant},
              [&] { forward(part, batch, wanted); });
  passes_.await_host();
  PassResult result;
  if (wanted == Wanted::kIds) result = stream_.download<int32_t>(buffers_->ids(rows));
  if (wanted == Wanted::kLogits) {
    const Tensor logits = buffers_->logits(rows);
    dispatch_float(logits.dtype, [&](auto element) { result = stream_.download<decltype(element)>(logits); });
  }
  return result;
}

void Generator::check(const std::vector<int32_t>& prompt, const std::string& where) const {
  if (prompt.empty()) throw UserError("the prompt is empty", where, "give at least one token");
  if (static_cast<int64_t>(prompt.size()) >= options_.max_length) {
    throw UserError(fmt::format("the prompt has {} tokens, but prompt and answer may have {} together", prompt.size(),
                                options_.max_length),
                    where, "shorten the prompt");
  }
  const int64_t vocab_size = decoder_.config().vocab_size;
  for (const int32_t id : prompt) {
    if (id < 0 || id >= vocab_size) {
      throw UserError(fmt::format("token id {} is outside the model's vocabulary of {}", id, vocab_size), where,
                      "use the tokenizer that belongs to the model");
    }
  }
}

void Generator::use_variant(int variant) {
  if (variant != std::exchange(variant_, variant)) options_.use_variant(variant);
}

Generator::Wanted Generator::wanted_of(const GenerationPass& pass) const {
  if (pass.choices.empty()) return Wanted::kNothing;
  const bool only_ids = std::all_of(pass.choices.begin(), pass.choices.end(), [&](const auto& choice) {
    const SequenceRequest& request = running_.at(choice.sequence);
    return takes_most_probable(request.sampling) && !request.likely;
  });
  return only_ids ? Wanted::kIds : Wanted::kLogits;
}

std::vector<GeneratedToken> Generator::choose(const GenerationPass& pass, PassResult& result) {
  std::vector<GeneratedToken> tokens(pass.choices.size());
  if (const auto* chosen = std::get_if<std::vector<int32_t>>(&result)) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i].id = (*chosen)[pass.choices[i].row];
      if (tokens[i].id < 0) throw logits_not_finite();
    }
    return tokens;
  }
  const auto vocab_size = static_cast<size_t>(decoder_.config().vocab_size);
  // The stream is idle, so its threads are free.
  stream_.pool().parallel_for(static_cast<int64_t>(tokens.size()), [&](int64_t i, int thread) {
    const auto [row, sequence] = pass.choices[static_cast<size_t>(i)];
    const SequenceRequest& request = running_.at(sequence);
    GeneratedToken& token = tokens[static_cast<size_t>(i)];
    const std::span<float> logits = logits_row(result, row, vocab_size, scratch_[static_cast<size_t>(thread)]);
    const std::vector<float> own =
        request.likely ? std::vector<float>(logits.begin(), logits.end()) : std::vector<float>();
    token.id = sample_token(logits, schedule_->seen(sequence), request.sampling,
                            {.sequence = request.draw, .position = static_cast<uint64_t>(schedule_->length(sequence))});
    if (!request.likely) return;
    token.likely = log_probabilities(own, token.id, *request.likely);
    token.log_probability = token.likely.front().value;
    token.likely.erase(token.likely.begin());
  });
  return tokens;
}

size_t Generator::add(SequenceRequest request, int64_t cached) {
  const size_t number =
      schedule_->add(std::move(request.prompt), {.max_new_tokens = request.sampling.max_new_tokens,
                                                 .stop_ids = request.stop_ids,
                                                 .track_seen = request.sampling.repetition_penalty != 1,
                                                 .cached = cached,
                                                 .variant = request.variant});
  running_.emplace(number, std::move(request));
  return number;
}

size_t Generator::begin(SequenceRequest request) {
  HONE_ASSERT(ranks() == 1 && !options_.keep_cache);
  check_sampling(request.sampling);
  check(request.prompt, "prompt");
  HONE_ASSERT(request.variant >= 0 && request.variant < options_.variants);
  return add(std::move(request), 0);
}

void Generator::end(size_t sequence) {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  const SequenceRequest request = std::move(found->second);
  running_.erase(found);
  schedule_->stop(sequence);
  if (options_.keep_cache) kept_ = schedule_->cached_tokens(sequence);
  const GeneratedSequence result = schedule_->take(sequence);
  if (request.on_end) request.on_end(result);
}

void Generator::end_all() {
  while (!running_.empty()) end(running_.begin()->first);
}

std::vector<GeneratedToken> Generator::computed(const Part& part, const GenerationPass& pass) {
  try {
    PassResult result = run(part, pass, wanted_of(pass));
    return choose(pass, result);
  } catch (...) {
    schedule_->forget_pages();
    throw;
  }
}

bool Generator::run_pass() {
  GenerationPass pass;
  const bool has_pass = schedule_->next(pass);
  const std::optional<RankPass> all = next(has_pass ? static_cast<int64_t>(pass.input_ids.size()) : 0);
  if (!all) return false;
  const Part part(companions_, *all);
  if (!has_pass) {
    idle_pass(part);
    return true;
  }
  use_variant(pass.variant);
  const std::vector<GeneratedToken> tokens = computed(part, pass);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t sequence = pass.choices[i].sequence;
    schedule_->accept(sequence, tokens[i].id);
    const SequenceRequest& request = running_.at(sequence);
    const bool goes_on = !request.on_token || request.on_token(tokens[i]);
    if (!goes_on || schedule_->ended(sequence)) end(sequence);
  }
  return true;
}

void Generator::idle_pass(const Part& part) {
  if (companions_.spreads_experts()) {
    run(part,
        {.input_ids = {0},
         .positions = {0},
         .cu_seqlens = {0, 1},
         .lengths = {0},
         .rows = {0},
         .pages = std::vector(cache_.groups.size(), std::vector<int32_t>(static_cast<size_t>(cache_.max_pages))),
         .max_seqlen = 1,
         .variant = variant_,
         .choices = {}},
        Wanted::kNothing);
    return;
  }
  for (const auto& [group, use, begins] : uses_) {
    begins ? companions_.acquired(context_, *group, use) : companions_.released(context_, *group, use);
  }
}

std::optional<RankPass> Generator::next(int64_t tokens) const {
  if (options_.deals_prompts) return companions_.agree(tokens);
  return tokens > 0 ? std::optional<RankPass>(std::in_place) : std::nullopt;
}

namespace {

/// Sequences as a text for other ranks: numbers of 4 bytes, for each sequence how it ended, its length and its tokens.
std::string text_of(const std::vector<GeneratedSequence>& sequences) {
  std::vector<int32_t> numbers;
  for (const GeneratedSequence& sequence : sequences) {
    numbers.push_back(static_cast<int32_t>(sequence.finish));
    numbers.push_back(static_cast<int32_t>(sequence.ids.size()));
    numbers.insert(numbers.end(), sequence.ids.begin(), sequence.ids.end());
  }
  std::string text(numbers.size() * sizeof(int32_t), '\0');
  std::memcpy(text.data(), numbers.data(), text.size());
  return text;
}

std::vector<GeneratedSequence> sequences_of(const std::string& text) {
  std::vector<int32_t> numbers(text.size() / sizeof(int32_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(int32_t));
  std::vector<GeneratedSequence> sequences;
  for (size_t at = 0; at < numbers.size();) {
    HONE_ASSERT(at + 2 <= numbers.size() && at + 2 + static_cast<size_t>(numbers[at + 1]) <= numbers.size());
    const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(at) + 2, end = begin + numbers[at + 1];
    sequences.push_back({.ids = {begin, end}, .finish = static_cast<FinishReason>(numbers[at])});
    at = static_cast<size_t>(end - numbers.begin());
  }
  return sequences;
}

}  // namespace

std::vector<GeneratedSequence> Generator::of_all_ranks(std::vector<GeneratedSequence> own, size_t prompts) const {
  if (ranks() == 1) return own;
  std::vector<GeneratedSequence> all(prompts);
  const std::vector<std::string> texts = companions_.control()->exchange(text_of(own));
  for (size_t from = 0; from < texts.size(); ++from) {
    std::vector<GeneratedSequence> sequences = sequences_of(texts[from]);
    for (size_t i = 0; i < sequences.size(); ++i) {
      HONE_ASSERT(i * texts.size() + from < prompts, "ranks generate for the same prompts");
      all[i * texts.size() + from] = std::move(sequences[i]);
    }
  }
  return all;
}

/// Number of prompt tokens that are in the cache. The last token is always computed, for its logits. A recurrent state
/// cannot be rewound, so it is reused only if the prompt continues after its last token.
int64_t Generator::kept_prefix(const std::vector<int32_t>& prompt) const {
  if (!options_.keep_cache) return 0;
  const auto same = static_cast<int64_t>(std::mismatch(prompt.begin(), prompt.end(), kept_.begin(), kept_.end()).first -
                                         prompt.begin());
  const int64_t prefix = std::min(same, static_cast<int64_t>(prompt.size()) - 1);
  const std::vector<LayerConfig>& layers = decoder_.config().layers;
  const bool recurrent =
      std::any_of(layers.begin(), layers.end(), [](const LayerConfig& layer) { return is_recurrent(layer.mixer); });
  return recurrent && prefix < static_cast<int64_t>(kept_.size()) ? 0 : prefix;
}

std::vector<GeneratedSequence> Generator::generate(const GenerationRequest& request) {
  check_sampling(request.sampling);
  for (size_t i = 0; i < request.prompts.size(); ++i) check(request.prompts[i], fmt::format("prompt {}", i + 1));
  HONE_ASSERT(running_.empty() && (!options_.keep_cache || request.prompts.size() == 1));
  reused_ = request.prompts.empty() ? 0 : kept_prefix(request.prompts.front());
  kept_.clear();         // if a pass fails, the contents of the cache are unknown
  bool all_end = false;  // by the caller's stop, or an error
  std::vector<GeneratedSequence> own;
  own.reserve(request.prompts.size() / ranks() + 1);
  for (size_t i = rank(); i < request.prompts.size(); i += ranks()) {
    GeneratedSequence& result = own.emplace_back();
    add({.prompt = request.prompts[i],
         .sampling = request.sampling,
         .stop_ids = request.stop_ids,
         .draw = request.first_sequence + i,
         .on_token =
             [&request, i](const GeneratedToken& token) {
               if (request.on_token) request.on_token(i, token.id);
               return !request.ends || !request.ends(i, token.id);
             },
         .on_end =
             [&request, &result, &all_end, i](const GeneratedSequence& sequence) {
               if (request.on_end && !all_end) request.on_end(i, sequence);
               result = sequence;
             }},
        i == 0 ? reused_ : 0);
  }
  try {
    do {
      all_end |= request.stop && request.stop();
      if (all_end) end_all();
    } while (run_pass());
  } catch (...) {
    all_end = true;
    end_all();
    kept_.clear();
    throw;
  }
  return of_all_ranks(std::move(own), request.prompts.size());
}

int64_t Generator::bytes() const {
  size_t total = passes_.memory().bytes() + buffers_->inputs.size() + buffers_->results.size();
  for (const Buffer& buffer : buffers_->cache_memory) total += buffer.size();
  return static_cast<int64_t>(total);
}

}  // namespace hone
