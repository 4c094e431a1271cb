#include "data/chat_encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {

namespace {

std::string roles_of(const RenderedChat& chat) {
  std::vector<std::string> roles;
  for (const RenderedMessage& message : chat.messages) {
    if (std::find(roles.begin(), roles.end(), message.role) == roles.end()) roles.push_back(message.role);
  }
  return fmt::format("{}", fmt::join(roles, ", "));
}

/// Names of the special tokens, as transformers hands them to a template.
Json special_token_variables(const Tokenizer& tokenizer) {
  Json variables = Json::object();
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    const auto token = id ? tokenizer.id_to_token(*id) : std::nullopt;
    if (token) variables[name] = *token;
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("pad_token", special.pad);
  add("unk_token", special.unk);
  return variables;
}

/// Index of the first message behind the last one of the user.
size_t behind_last_question(const RenderedChat& chat) {
  size_t begin = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].role == "user") begin = i + 1;
  }
  return begin;
}

std::string why_nothing_is_learnt(const RenderedChat& chat, bool has_ranges) {
  if (has_ranges) return "every message that would be learnt has the weight 0";
  const bool answered = std::any_of(chat.messages.begin(), chat.messages.end(),
                                    [](const RenderedMessage& message) { return message.role == "assistant"; });
  if (!answered) return fmt::format("no message has the role 'assistant' (roles: {})", roles_of(chat));
  return "the template shows nothing of the assistant's messages that would be learnt";
}

/// Whether such characters are what the message says.
bool is_own(SpanKind kind) {
  return kind == SpanKind::kContent || kind == SpanKind::kReasoning || kind == SpanKind::kToolCall;
}

bool shown_whole(const RenderedMessage& message) {
  return message.content.complete() && message.reasoning.complete() && message.tool_calls.complete();
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const ChatEncoderOptions& options)
    : tokenizer_(tokenizer), train_on_(options.train_on), variables_(special_token_variables(tokenizer)) {
  variables_.update(options.chat_template_kwargs);
  if (!options.chat_template.empty()) {
    template_.emplace(options.chat_template, options.chat_template_name);
  } else if (const auto own = tokenizer.chat_template()) {
    template_.emplace(*own, "chat_template");
    if (const auto tools = tokenizer.chat_template("tool_use"))
      tool_template_.emplace(*tools, "chat_template tool_use");
  }
  mask_.train_on = train_on_;
  for (const int32_t id : tokenizer.special_tokens().stop) {
    if (const auto token = tokenizer.id_to_token(id)) mask_.end_tokens.push_back(*token);
  }
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.special) mask_.special_tokens.push_back(token.content);
  }
}

const ChatTemplate& ChatEncoder::template_for(const Conversation& conversation, const std::string& where) const {
  // As transformers: of several templates, the one named tool_use where there are tools.
  if (tool_template_ && conversation.tools.is_array()) return *tool_template_;
  if (template_) return *template_;
  throw UserError("the model has no chat template, which messages need", where,
                  "state chat_template_file, or write the data as text: prompt and completion");
}

RenderedChat ChatEncoder::render(const Conversation& conversation, const std::string& where) const {
  ChatInput input;
  input.messages = conversation.messages;
  input.tools = conversation.tools;
  input.variables = variables_;
  input.variables.update(conversation.template_kwargs);
  try {
    return template_for(conversation, where).render(input);
  } catch (const UserError& error) {
    if (error.where() == where) throw;
    const std::string place = error.where().empty() ? where : fmt::format("{}, at {}", where, error.where());
    throw UserError(error.message(), place, error.fix());
  }
}

std::vector<SupervisedRange> ChatEncoder::ranges_of(const RenderedChat& chat, const Conversation& conversation) const {
  MaskOptions mask = mask_;
  if (train_on_ == TrainOn::kCompletion) {
    mask.completion_begin = conversation.completion_begin.value_or(behind_last_question(chat));
  }
  std::vector<SupervisedRange> ranges = supervised_ranges(chat, mask);
  if (conversation.completion_begin) {
    const auto first = static_cast<int>(*conversation.completion_begin);
    std::erase_if(
        ranges, [&](const SupervisedRange& range) { return range.message_index >= 0 && range.message_index < first; });
  }
  return ranges;
}

std::vector<ChatEncoder::WeightedRange> ChatEncoder::weighted(const RenderedChat& chat,
                                                              const std::vector<SupervisedRange>& ranges,
                                                              const std::vector<float>& weights) {
  const auto weight_of = [&](int message) { return message < 0 ? 1.0f : weights[static_cast<size_t>(message)]; };
  std::vector<WeightedRange> result;
  for (const SupervisedRange& range : ranges) {
    if (range.message_index >= 0) {
      result.push_back({range.begin, range.end, weight_of(range.message_index)});
      continue;
    }
    for (const Span& span : chat.spans) {
      const size_t begin = std::max(range.begin, span.begin), end = std::min(range.end, span.end);
      if (begin < end) result.push_back({begin, end, weight_of(span.message_index)});
    }
  }
  return result;
}

std::string ChatEncoder::turn_end_problem(const RenderedChat& chat, const SupervisedRange& range,
                                          const Encoding& encoding) const {
  if (!range.ends_turn) {
    size_t own_end = range.begin;
    for (const Span& span : chat.spans) {
      if (span.message_index == range.message_index && is_own(span.kind) && span.end <= range.end) own_end = span.end;
    }
    const std::string tail = chat.text.substr(own_end, range.end - own_end);
    if (tail.empty()) return "the template ends an answer without an end-of-turn token, so stopping is not learnt";
    return fmt::format("the template ends an answer with '{}', which is {} tokens and not one of the tokenizer's own",
                       tail, tokenizer_.encode(tail, false).size());
  }
  const auto behind = std::partition_point(encoding.offsets.begin(), encoding.offsets.end(),
                                           [&](const ByteRange& token) { return token.begin < range.end; });
  if (behind == encoding.offsets.begin()) return {};
  const int32_t end = encoding.ids[static_cast<size_t>(behind - encoding.offsets.begin()) - 1];
  const auto& stop = tokenizer_.special_tokens().stop;
  if (std::find(stop.begin(), stop.end(), end) != stop.end()) return {};
  return fmt::format(
      "answers end with '{}', which is neither eos_token nor in eos_token_id of generation_config.json, so "
      "generation will not stop there",
      tokenizer_.id_to_token(end).value_or("?"));
}

EncodedRow ChatEncoder::encode(const Conversation& conversation, const std::string& where) const {
  const RenderedChat chat = render(conversation, where);
  const std::vector<SupervisedRange> ranges = ranges_of(chat, conversation);
  const std::vector<WeightedRange> parts = weighted(chat, ranges, conversation.weights);
  Encoding encoding = tokenizer_.encode_with_offsets(chat.text, false);

  EncodedRow row;
  Sample& sample = row.sample;
  sample.labels.assign(encoding.ids.size(), kIgnoredLabel);
  std::vector<float> weights(encoding.ids.size(), 1.0f);
  size_t part = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const size_t begin = encoding.offsets[i].begin;
    while (part < parts.size() && parts[part].end <= begin) ++part;
    if (part == parts.size() || begin < parts[part].begin || parts[part].weight == 0) continue;
    sample.labels[i] = encoding.ids[i];
    weights[i] = parts[part].weight;
  }
  if (std::any_of(weights.begin(), weights.end(), [](float weight) { return weight != 1.0f; })) {
    sample.weights = std::move(weights);
  }
  for (const SupervisedRange& range : ranges) {
    if (range.message_index < 0) continue;
    if (!shown_whole(chat.messages[static_cast<size_t>(range.message_index)])) row.partly_shown = true;
    if (row.turn_end_problem.empty()) row.turn_end_problem = turn_end_problem(chat, range, encoding);
  }
  const auto bos = tokenizer_.special_tokens().bos;
  row.doubled_bos = bos && encoding.ids.size() > 1 && encoding.ids[0] == *bos && encoding.ids[1] == *bos;
  row.other_roles_ask =
      conversation.other_roles_ask && (train_on_ == TrainOn::kAssistant || train_on_ == TrainOn::kLast);
  sample.input_ids = std::move(encoding.ids);
  if (sample.supervised() == 0) {
    row.masked_by_data = !parts.empty() && std::all_of(parts.begin(), parts.end(),
                                                       [](const WeightedRange& range) { return range.weight == 0; });
    row.nothing_learnt = why_nothing_is_learnt(chat, row.masked_by_data);
  }
  return row;
}

}  // namespace hone
