// Records of convolutions: one record for each pass, each copy that it needs, and the bias.
#include "time/records/convolution_record.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

using SpatialSizes = ConvolutionShape::Extent;

double as_double(int64_t number) {
  return static_cast<double>(number);
}

float as_size(int64_t number) {
  return static_cast<float>(number);
}

// Returns the spatial sizes of a tensor, aligned to the right: a missing depth or height is 1.
SpatialSizes spatial_sizes_of(const at::Tensor& tensor, int64_t spatial) {
  SpatialSizes extent{1, 1, 1};
  for (int64_t i = 0; i < spatial; ++i) {
    extent[3 - spatial + i] = as_size(tensor.size(tensor.dim() - spatial + i));
  }
  return extent;
}

// Returns the numbers in the argument at `place`, one per spatial dimension: a single number
// applies to all dimensions, and `otherwise` applies if there is no argument.
SpatialSizes extent_at(Arguments arguments, int place, int64_t spatial, float otherwise) {
  SpatialSizes extent{otherwise, otherwise, otherwise};
  if (place < 0 || !arguments[place].isIntList()) {
    return extent;
  }
  const auto numbers = arguments[place].toDimVector();
  for (int64_t i = 0; i < spatial && !numbers.empty(); ++i) {
    extent[3 - spatial + i] = as_size(numbers[std::min<size_t>(i, numbers.size() - 1)]);
  }
  return extent;
}

double input_elements(const ConvolutionShape& shape) {
  return shape.batch * shape.in_channels * volume(shape.in);
}

double output_elements(const ConvolutionShape& shape) {
  return shape.batch * shape.out_channels * volume(shape.out);
}

double weight_elements(const ConvolutionShape& shape) {
  return shape.in_channels / shape.groups * shape.out_channels * volume(shape.kernel);
}

// Returns the sizes along one dimension of the other end of a convolution.
float size_of_output(float in, float kernel, float stride, float padding, float dilation) {
  return std::max(0.0F, std::floor((in + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1);
}

float size_of_transposed_output(
    float in,
    float kernel,
    float stride,
    float padding,
    float dilation,
    float extra) {
  return std::max(0.0F, (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1);
}

// Returns the geometry that input, weight and arguments give. For a transposed convolution, it is
// that of the convolution which it transposes: `in` is its result.
ConvolutionShape shape_of(
    const WorkRules& rules,
    Arguments arguments,
    const at::Tensor& input,
    const at::Tensor& weight,
    bool transposed) {
  const auto& places = rules.places;
  const int64_t spatial = weight.dim() - 2;
  ConvolutionShape shape;
  shape.batch = input.dim() == weight.dim() ? as_double(input.size(0)) : 1;
  // Depthwise operators have no argument for the groups.
  shape.groups = places.groups >= 0 ? as_double(arguments[places.groups].toInt())
      : transposed                  ? 1
                                    : as_double(input.size(-spatial - 1) / weight.size(1));
  shape.kernel = spatial_sizes_of(weight, spatial);
  shape.stride = extent_at(arguments, places.stride, spatial, 1);
  shape.dilation = extent_at(arguments, places.dilation, spatial, 1);
  shape.channels_last = !input.is_contiguous() && fastest_dimension(input) == 1;
  const SpatialSizes padding = extent_at(arguments, places.padding, spatial, 0);
  const SpatialSizes extra = extent_at(arguments, places.output_padding, spatial, 0);
  SpatialSizes& near = transposed ? shape.out : shape.in; // the end of the given input
  SpatialSizes& far = transposed ? shape.in : shape.out;
  near = spatial_sizes_of(input, spatial);
  for (int64_t i = 3 - spatial; i < 3; ++i) {
    far[i] = transposed
        ? size_of_transposed_output(
              near[i], shape.kernel[i], shape.stride[i], padding[i], shape.dilation[i], extra[i])
        : size_of_output(near[i], shape.kernel[i], shape.stride[i], padding[i], shape.dilation[i]);
  }
  // A weight is (out, in / groups, ...), in the terms of the convolution that is not transposed.
  shape.out_channels = as_double(weight.size(0));
  shape.in_channels = as_double(weight.size(1)) * shape.groups;
  return shape;
}

void add_pass(
    Works& works,
    const at::Tensor& input,
    const ConvolutionShape& shape,
    ConvolutionPass pass) {
  Work& work = works.emplace_back(shape);
  work.precision = precision_of(input.scalar_type(), Family::Convolution);
  work.element_bytes = as_double(input.element_size());
  work.convolution.pass = pass;
  work.flops = 2 * weight_elements(shape) * shape.batch * volume(shape.out);
  const double all = input_elements(shape) + output_elements(shape) + weight_elements(shape);
  const double written = pass == ConvolutionPass::Forward ? output_elements(shape)
      : pass == ConvolutionPass::ByInput                  ? input_elements(shape)
                                                          : weight_elements(shape);
  work.bytes_read = (all - written) * work.element_bytes;
  work.bytes_written = written * work.element_bytes;
  work.footprint_bytes = all * work.element_bytes;
}

void add_bias_work(Works& works, const at::Tensor& input, double elements, Access access) {
  const double bytes = elements * as_double(input.element_size());
  works.push_back(memory_work(bytes, access == Access::Reduction ? 0 : bytes, access));
  works.back().footprint_bytes = bytes;
}

// A kernel reads tensors without gaps: PyTorch copies others first, such as a part of the channels.
void add_copy_without_gaps(Works& works, const at::Tensor& tensor) {
  const bool has_gaps = !tensor.is_contiguous() &&
      !(tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) &&
      !(tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d));
  if (!has_gaps || tensor.numel() == 0) {
    return;
  }
  const int64_t fastest = fastest_dimension(tensor);
  const bool keeps_order = fastest == 1 || fastest == tensor.dim() - 1;
  const double bytes = as_double(tensor.numel() * tensor.element_size());
  works.push_back(memory_work(bytes, bytes, keeps_order ? Access::Pointwise : Access::Strided));
}

bool is_given_at(Arguments arguments, int place) {
  return place >= 0 && arguments[place].isTensor() && arguments[place].toTensor().defined();
}

void describe_forward(
    const WorkRules& rules,
    Arguments arguments,
    Description& description,
    bool transposed) {
  const auto &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  const auto shape = shape_of(rules, arguments, input, weight, transposed);
  add_copy_without_gaps(description.works, input);
  add_pass(
      description.works, input, shape,
      transposed ? ConvolutionPass::ByInput : ConvolutionPass::Forward);
  if (is_given_at(arguments, rules.places.bias)) { // added by a kernel of its own
    add_bias_work(
        description.works, input, transposed ? input_elements(shape) : output_elements(shape),
        Access::Pointwise);
  }
}

// (input, weight, ...), transposed if an argument says so
void describe_plain_convolution(
    const WorkRules& rules,
    Arguments arguments,
    Description& description) {
  const int place = rules.places.transposed;
  describe_forward(rules, arguments, description, place >= 0 && arguments[place].toBool());
}

void describe_transposed(const WorkRules& rules, Arguments arguments, Description& description) {
  describe_forward(rules, arguments, description, true);
}

// (gradient, input, weight, ...)
void describe_gradients(const WorkRules& rules, Arguments arguments, Description& description) {
  const auto &gradient = arguments[0].toTensor(), &input = arguments[1].toTensor(),
             &weight = arguments[2].toTensor();
  const bool transposed = arguments[rules.places.transposed].toBool();
  const auto mask = arguments[rules.places.output_mask].toBoolList();
  auto shape = shape_of(rules, arguments, input, weight, transposed);
  (transposed ? shape.in : shape.out) = spatial_sizes_of(gradient, weight.dim() - 2);
  add_copy_without_gaps(description.works, gradient);
  if (mask.get(0)) {
    add_pass(
        description.works, input, shape,
        transposed ? ConvolutionPass::Forward : ConvolutionPass::ByInput);
  }
  if (mask.get(1)) {
    add_copy_without_gaps(description.works, input);
    add_pass(description.works, input, shape, ConvolutionPass::ByWeight);
  }
  if (mask.get(2)) {
    add_bias_work(description.works, input, as_double(gradient.numel()), Access::Reduction);
  }
}

} // namespace

Describe find_convolution(const std::string& name) {
  static const std::unordered_map<std::string, Describe> convolutions = {
      {"convolution", describe_plain_convolution},
      {"convolution_overrideable", describe_plain_convolution},
      {"cudnn_convolution", describe_plain_convolution},
      {"cudnn_convolution_relu", describe_plain_convolution},
      {"cudnn_convolution_add_relu", describe_plain_convolution},
      {"_slow_conv2d_forward", describe_plain_convolution},
      {"_conv_depthwise2d", describe_plain_convolution},
      {"conv_depthwise3d", describe_plain_convolution},
      {"slow_conv_dilated2d", describe_plain_convolution},
      {"slow_conv_dilated3d", describe_plain_convolution},
      {"cudnn_convolution_transpose", describe_transposed},
      {"slow_conv_transpose2d", describe_transposed},
      {"slow_conv_transpose3d", describe_transposed},
      {"convolution_backward", describe_gradients},
  };
  const auto found = convolutions.find(name);
  return found == convolutions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
