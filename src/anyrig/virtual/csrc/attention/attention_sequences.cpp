#include "attention/attention_sequences.h"

#include "dispatch/twin.h"

#include <ATen/TensorOperators.h>

namespace anyrig::virtual_gpu {
namespace {

at::Tensor heads_first(const at::Tensor& tensor) {
  return tensor.transpose(-3, -2);
}

// Returns one sequence of a packed CPU tensor as (1, heads, tokens, head size).
at::Tensor slice_sequence(const at::Tensor& packed, int64_t start, int64_t count) {
  return heads_first(packed.narrow(0, start, count)).unsqueeze(0);
}

struct KeyRange {
  int64_t start;
  int64_t count;
};

KeyRange key_range(const Sequences& sequences, int64_t index) {
  const auto* starts = twin_of(*sequences.key_starts).const_data_ptr<int32_t>();
  if (is_given(sequences.used_keys)) {
    return {starts[index], twin_of(*sequences.used_keys).const_data_ptr<int32_t>()[index]};
  }
  return {starts[index], starts[index + 1] - starts[index]};
}

// Returns the keys or values of one packed sequence, gathered if they lie in pages.
at::Tensor keys_of(const at::Tensor& all, const Sequences& sequences, int64_t index) {
  const KeyRange range = key_range(sequences, index);
  if (!is_given(sequences.block_table)) {
    return slice_sequence(all, range.start, range.count);
  }
  const auto pages = twin_of(*sequences.block_table)[index].to(at::kLong).clamp_min(0);
  return slice_sequence(all.index_select(0, pages).flatten(0, 1), 0, range.count);
}

template <class Work>
void for_each_sequence(const Sequences& sequences, const Work& work) {
  const auto* starts = twin_of(*sequences.query_starts).const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < sequences.query_starts->numel(); ++i) {
    work(Sequence{i, starts[i], starts[i + 1] - starts[i]});
  }
}

// Returns `recipe` with the dropout offset of one packed sequence.
Recipe recipe_of_sequence(const Recipe& recipe, int64_t index) {
  Recipe result = recipe;
  result.dropout.offset += static_cast<uint64_t>(index) * recipe.dropout.sequence_step;
  return result;
}

QueryKeyValue twins_of(const QueryKeyValue& tensors) {
  return {twin_of(tensors.query), twin_of(tensors.key), twin_of(tensors.value)};
}

} // namespace

double Sequences::score_count(const at::Tensor& query) const {
  if (!packed() || shape_only()) {
    return static_cast<double>(count(query)) * static_cast<double>(longest_query) *
        static_cast<double>(longest_key);
  }
  double scores = 0;
  for_each_sequence(*this, [&](const Sequence& sequence) {
    scores += static_cast<double>(sequence.queries) *
        static_cast<double>(key_range(*this, sequence.index).count);
  });
  return scores;
}

AttentionWork work_of(
    AttentionKernel kernel,
    const at::Tensor& query,
    const at::Tensor& value,
    const Sequences& sequences,
    const Band& band) {
  AttentionShape shape;
  shape.kernel = kernel;
  shape.batch = static_cast<double>(sequences.count(query));
  shape.heads = static_cast<double>(query.size(-2));
  shape.queries = static_cast<double>(sequences.longest_query);
  const double queries = shape.batch * shape.queries;
  shape.keys = queries > 0 ? sequences.score_count(query) / queries : 0;
  return {
      shape, static_cast<double>(query.size(-1)), static_cast<double>(value.size(-1)),
      band.share(sequences.longest_key)};
}

void compute_forward(
    const QueryKeyValue& operands,
    const at::Tensor& output,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of) {
  const auto [query, key, value] = twins_of(operands);
  const auto destination = twin_of(output);
  const auto write = [&](const Attention& result, at::Tensor place, const Sequence& sequence) {
    place.copy_(result.output);
    if (logsumexp_of) {
      logsumexp_of(sequence).copy_(result.logsumexp);
    }
  };
  if (!sequences.packed()) {
    const auto result =
        attention_forward(heads_first(query), heads_first(key), heads_first(value), recipe);
    write(result, heads_first(destination), {0, 0, sequences.longest_query});
    return;
  }
  for_each_sequence(sequences, [&, &query = query, &key = key, &value = value](const Sequence& s) {
    const auto result = attention_forward(
        slice_sequence(query, s.start, s.queries), keys_of(key, sequences, s.index),
        keys_of(value, sequences, s.index), recipe_of_sequence(recipe, s.index));
    write(result, slice_sequence(destination, s.start, s.queries), s);
  });
}

void compute_signed_attention(
    const QueryKeyValue& operands,
    const at::Tensor& result,
    const Sequences& sequences,
    const Recipe& recipe) {
  const auto [query, key, value] = twins_of(operands);
  const auto destination = twin_of(result);
  destination.zero_();
  const auto write = [](const at::Tensor& place, const at::Tensor& attention) {
    place.narrow(2, 0, attention.size(2)).narrow(3, 0, attention.size(3)).copy_(attention);
  };
  if (!sequences.packed()) {
    write(destination, signed_attention(heads_first(query), heads_first(key), recipe));
    return;
  }
  for_each_sequence(sequences, [&, &query = query, &key = key](const Sequence& s) {
    write(
        destination.narrow(0, s.index, 1),
        signed_attention(
            slice_sequence(query, s.start, s.queries), keys_of(key, sequences, s.index),
            recipe_of_sequence(recipe, s.index)));
  });
}

void compute_backward(
    const at::Tensor& gradient,
    const QueryKeyValue& operands,
    const at::Tensor& output,
    const QueryKeyValue& results,
    const at::Tensor& bias_result,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of) {
  const auto [query, key, value] = twins_of(operands);
  const auto [query_gradient, key_gradient, value_gradient] = twins_of(results);
  const auto output_gradient = twin_of(gradient);
  const auto out = twin_of(output);
  if (!sequences.packed()) {
    const Attention forward{heads_first(out), logsumexp_of({0, 0, sequences.longest_query})};
    const auto result = attention_backward(
        heads_first(output_gradient), heads_first(query), heads_first(key), heads_first(value),
        forward, recipe, bias_result.defined());
    heads_first(query_gradient).copy_(result.query);
    heads_first(key_gradient).copy_(result.key);
    heads_first(value_gradient).copy_(result.value);
    if (bias_result.defined()) {
      twin_of(bias_result).copy_(result.bias);
    }
    return;
  }
  for_each_sequence(
      sequences,
      [&, &query = query, &key = key, &value = value, &query_gradient = query_gradient,
       &key_gradient = key_gradient, &value_gradient = value_gradient](const Sequence& s) {
        const KeyRange range = key_range(sequences, s.index);
        const auto result = attention_backward(
            slice_sequence(output_gradient, s.start, s.queries),
            slice_sequence(query, s.start, s.queries),
            slice_sequence(key, range.start, range.count),
            slice_sequence(value, range.start, range.count),
            {slice_sequence(out, s.start, s.queries), logsumexp_of(s)},
            recipe_of_sequence(recipe, s.index),
            /*needs_bias_gradient=*/false);
        slice_sequence(query_gradient, s.start, s.queries).copy_(result.query);
        slice_sequence(key_gradient, range.start, range.count).copy_(result.key);
        slice_sequence(value_gradient, range.start, range.count).copy_(result.value);
      });
}

} // namespace anyrig::virtual_gpu
