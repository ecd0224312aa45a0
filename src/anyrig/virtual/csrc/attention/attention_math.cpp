#include "attention/attention_math.h"

#include "random/curand_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace anyrig::virtual_gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Repeats each head of a key or value for every query head that it serves.
at::Tensor repeat_heads(const at::Tensor& tensor, int64_t heads) {
  const int64_t key_heads = tensor.size(1);
  if (key_heads == heads) {
    return tensor;
  }
  const auto sizes = tensor.sizes();
  return tensor.unsqueeze(2)
      .expand({sizes[0], key_heads, heads / key_heads, sizes[2], sizes[3]})
      .reshape({sizes[0], heads, sizes[2], sizes[3]});
}

// Sums the gradients of the copies that `repeat_heads` made.
at::Tensor sum_heads(const at::Tensor& gradient, int64_t heads) {
  if (gradient.size(1) == heads) {
    return gradient;
  }
  const auto sizes = gradient.sizes();
  return gradient.view({sizes[0], heads, sizes[1] / heads, sizes[2], sizes[3]}).sum(2);
}

// PyTorch's fused CPU operator needs no memory for the scores, but supports fewer options.
bool is_supported_by_cpu_operator(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Recipe& recipe) {
  const Band& band = recipe.band;
  const bool square = query.size(2) == key.size(2);
  const bool causal = !band.left.has_value() && band.right == 0 && (!band.aligned_at_end || square);
  return (band.is_unlimited() || causal) && recipe.dropout.probability == 0 &&
      !recipe.bias.defined() && query.size(3) == value.size(3) && query.numel() > 0 &&
      key.numel() > 0 && query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1;
}

// Returns `gradient` in a layout that PyTorch's fused CPU operator reads: rows that are dense and do
// not overlap. The layout of CUDA's operators, (batch, tokens, heads, head size), is one, and a copy
// would be a quarter of the overhead of attention's backward pass.
at::Tensor with_dense_rows(const at::Tensor& gradient) {
  return gradient.transpose(1, 2).is_contiguous() ? gradient : gradient.contiguous();
}

// Returns the scores of `query` and `key`, both already in the dtype of the computation.
at::Tensor scores_of(const at::Tensor& query, const at::Tensor& key, const Recipe& recipe) {
  auto scores = at::matmul(query * recipe.scale, key.transpose(-2, -1));
  if (recipe.bias.defined()) {
    scores += recipe.bias;
  }
  const Band& band = recipe.band;
  if (band.is_unlimited()) {
    return scores;
  }
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  const int64_t shift = band.aligned_at_end ? keys - queries : 0;
  // The position of each key relative to each query.
  const auto distance = at::arange(keys).unsqueeze(0) - at::arange(queries).unsqueeze(1) - shift;
  if (band.right.has_value()) {
    scores.masked_fill_(distance > *band.right, -kInfinity);
  }
  if (band.left.has_value()) {
    scores.masked_fill_(distance < -*band.left, -kInfinity);
  }
  return scores;
}

// Returns 0 for dropped scores and 1 / (1 - probability) for the others; undefined without dropout.
at::Tensor dropout_factors(const at::Tensor& scores, const Dropout& dropout) {
  if (dropout.probability == 0) {
    return {};
  }
  if (dropout.probability == 1) {
    return at::zeros_like(scores);
  }
  return draw_dropout_mask(scores.sizes(), dropout).to(scores.scalar_type()) /
      (1 - dropout.probability);
}

at::Tensor multiply_if_defined(const at::Tensor& tensor, const at::Tensor& factors) {
  return factors.defined() ? tensor * factors : tensor;
}

} // namespace

at::Tensor draw_dropout_mask(at::IntArrayRef sizes, const Dropout& dropout) {
  const auto numbers = at::empty(sizes, at::kFloat);
  if (dropout.in_order) {
    draw_dropout_numbers(numbers, dropout);
    return numbers > dropout.probability;
  }
  // 2^64 divided by the golden ratio, so that neighbouring offsets give distant seeds.
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(dropout.seed + dropout.offset * 0x9e3779b97f4a7c15);
  return numbers.uniform_(0, 1, generator) >= dropout.probability;
}

// As in aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, each score of a
// head has its own position in the sequence of one cuRAND thread.
void draw_dropout_numbers(const at::Tensor& numbers, const Dropout& dropout) {
  if (numbers.numel() == 0) {
    return;
  }
  const int64_t scores_per_head = numbers.size(-1) * numbers.size(-2);
  auto* to = numbers.mutable_data_ptr<float>();
  const int64_t heads = numbers.numel() / scores_per_head;
  at::parallel_for(0, heads, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const auto step = static_cast<uint64_t>(head * dropout.head_step);
      PhiloxThread thread({dropout.seed, dropout.offset + step}, /*subsequence=*/0);
      int64_t i = head * scores_per_head;
      const int64_t last = i + scores_per_head;
      for (; i + 4 <= last; i += 4) {
        const auto values = draw_uniform4(thread.next4());
        std::copy(values.begin(), values.end(), to + i);
      }
      for (; i < last; ++i) {
        to[i] = uniform_value(thread.next());
      }
    }
  });
}

at::Tensor signed_attention(const at::Tensor& query, const at::Tensor& key, const Recipe& recipe) {
  const at::NoGradGuard no_grad;
  const auto dtype = at::toOpMathType(query.scalar_type());
  const auto keys = repeat_heads(key, query.size(1));
  const auto scores = scores_of(query.to(dtype), keys.to(dtype), recipe);
  const auto maximum = scores.amax(-1, /*keepdim=*/true);
  const auto attention = at::exp(scores - maximum.masked_fill(maximum == -kInfinity, 0));
  const auto kept = draw_dropout_mask(scores.sizes(), recipe.dropout);
  return at::where(kept, attention, -attention);
}

Attention attention_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Recipe& recipe) {
  const at::NoGradGuard no_grad;
  const auto keys = repeat_heads(key, query.size(1));
  const auto values = repeat_heads(value, query.size(1));
  if (is_supported_by_cpu_operator(query, keys, values, recipe)) {
    const bool causal = !recipe.band.is_unlimited();
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, /*dropout_p=*/0.0, causal, /*attn_mask=*/std::nullopt, recipe.scale);
    return {output, logsumexp};
  }
  const auto dtype = at::toOpMathType(query.scalar_type());
  auto scores = scores_of(query.to(dtype), keys.to(dtype), recipe);
  auto logsumexp = at::logsumexp(scores, -1);
  logsumexp.masked_fill_(logsumexp == -kInfinity, kInfinity);
  const auto attention = multiply_if_defined(
      at::exp(scores - logsumexp.unsqueeze(-1)), dropout_factors(scores, recipe.dropout));
  return {
      at::matmul(attention, values.to(dtype)).to(query.scalar_type()), logsumexp.to(at::kFloat)};
}

Gradients attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Attention& forward,
    const Recipe& recipe,
    bool needs_bias_gradient) {
  const at::NoGradGuard no_grad;
  const auto keys = repeat_heads(key, query.size(1));
  const auto values = repeat_heads(value, query.size(1));
  Gradients result;
  if (is_supported_by_cpu_operator(query, keys, values, recipe)) {
    const bool causal = !recipe.band.is_unlimited();
    // In half precision this operator rounds the sums after every block of keys; CUDA sums in
    // float32.
    const auto dtype = at::toOpMathType(query.scalar_type());
    std::tie(result.query, result.key, result.value) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            with_dense_rows(gradient.to(dtype)), query.to(dtype), keys.to(dtype), values.to(dtype),
            forward.output.to(dtype), forward.logsumexp, /*dropout_p=*/0.0, causal,
            /*attn_mask=*/std::nullopt, recipe.scale);
  } else {
    const auto dtype = at::toOpMathType(query.scalar_type());
    const auto wide_query = query.to(dtype);
    const auto wide_keys = keys.to(dtype);
    const auto wide_gradient = gradient.to(dtype);
    const auto scores = scores_of(wide_query, wide_keys, recipe);
    const auto attention = at::exp(scores - forward.logsumexp.unsqueeze(-1));
    const auto factors = dropout_factors(scores, recipe.dropout);
    result.value =
        at::matmul(multiply_if_defined(attention, factors).transpose(-2, -1), wide_gradient);
    const auto attention_gradient =
        multiply_if_defined(at::matmul(wide_gradient, values.to(dtype).transpose(-2, -1)), factors);
    const auto delta = (wide_gradient * forward.output.to(dtype)).sum(-1, /*keepdim=*/true);
    const auto score_gradient = attention * (attention_gradient - delta);
    result.query = at::matmul(score_gradient, wide_keys) * recipe.scale;
    result.key = at::matmul(score_gradient.transpose(-2, -1), wide_query) * recipe.scale;
    if (needs_bias_gradient) {
      result.bias = score_gradient;
    }
  }
  result.key = sum_heads(result.key, key.size(1));
  result.value = sum_heads(result.value, value.size(1));
  return result;
}

} // namespace anyrig::virtual_gpu
