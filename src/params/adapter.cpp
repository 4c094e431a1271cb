#include "params/adapter.h"

#include <algorithm>
#include <vector>

#include "params/random_weights.h"

namespace hone {

Parameter& AdapterSite::add(const std::string& suffix, const Shape& shape) const {
  Parameter& added = store.add({.name = module + suffix,
                                .shape = shape,
                                .kind = ParameterKind::kLora,
                                .layer = adapted.spec().layer,
                                .layouts = {},
                                .of_experts = adapted.spec().of_experts},
                               DType::kF32);
  added.set_group(adapted.group());
  return added;
}

AttachedAdapter::AttachedAdapter(const AdapterSite& site) : kind_(site.kind), place_(site.place), scale_(site.scale) {
  if (site.adapted.spec().kind != ParameterKind::kRouter) return;
  const int64_t experts = site.adapted.shape()[0];
  identity_ = &site.add(".lora_identity", {experts, experts});
  identity_->set_trainable(false);
}

Weight* AttachedAdapter::identity() const { return identity_; }

void AttachedAdapter::initialise_identity(const Context& context) const {
  if (identity_ == nullptr || context.dry()) return;
  const int64_t experts = identity_->shape()[0];
  std::vector<float> values(static_cast<size_t>(experts * experts));
  for (int64_t e = 0; e < experts; ++e) values[static_cast<size_t>(e * experts + e)] = 1;
  fill_stored(context, *identity_, [&](const Tensor& to) { context.stream().upload(to, values); });
}

void AttachedAdapter::merge_row(std::span<float>, int64_t) const { HONE_ASSERT(!merges_rows()); }

void AttachedAdapter::merge_row(std::span<double>, std::span<double>, int64_t) const { HONE_ASSERT(!merges_rows()); }

namespace {

/// row += scaling · B[e, output] A[e]
void add_low_rank(const LowRank& low_rank, int64_t expert, int64_t output, std::span<float> row) {
  const int64_t r = low_rank.a->shape()[-2], in = low_rank.a->shape()[-1], out = low_rank.b->shape()[-2];
  const float* b = low_rank.b->value().whole().as<float>() + (expert * out + output) * r;
  for (int64_t rho = 0; rho < r; ++rho) {
    const float factor = low_rank.factors.scaling * b[rho];
    const float* direction = low_rank.a->value().whole().as<float>() + (expert * r + rho) * in;
    for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] += factor * direction[i];
  }
}

}  // namespace

void merge_adapters(ParameterStore& store) {
  for (Parameter& p : store.all()) {
    const int64_t out = p.shape().rank() >= 2 ? p.shape()[-2] : 0, in = p.shape()[-1];
    const int64_t experts = p.shape().rank() == 3 ? p.shape()[0] : 1;
    std::vector<float> row(static_cast<size_t>(in));
    for (const auto& attached : p.adapters()) {
      const AdapterPlace& place = attached->place();
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t o = 0; o < place.out_count; ++o) {
          const int64_t first = (e * out + place.out_begin + o) * in;
          dispatch_float(stepped_value(p).dtype, [&](auto element) {
            const auto* weight = stepped_value(p).as<decltype(element)>() + first;
            std::copy(weight, weight + in, row.begin());
          });
          if (const LowRank* low_rank = attached->low_rank()) add_low_rank(*low_rank, e, o, row);
          if (attached->merges_rows()) attached->merge_row(std::span<float>(row), o);
          write_values(p, first, row.data(), in);
        }
      }
    }
    p.adapters().clear();
  }
}

}  // namespace hone
