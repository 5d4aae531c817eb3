"""What the causes of vLLM's failures look like in a log: a table of patterns, first match on a line wins.

Sources: real failures of vLLM 0.32 on a CPU (tests/vllm/diagnosis/logs), the messages in the sources of vLLM,
transformers, huggingface_hub, torch and NCCL, and public issue threads for what needs a GPU (linked per code in
data/diagnosis.json). Wordings changed over the versions; all that were seen are kept, since logs outlive engines.
"""

import re
from dataclasses import dataclass

from workers.vllm.diagnosis_words import words_of


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording of one cause.

    A line that matches `pattern` holds one of `words`, which is quicker to see. `confidence` is how sure the cause is
    when the line is there, 0 to 1. `any_level` also looks at lines that call themselves INFO. `context`, if given, must
    be found in the lines before. `hint` is a sentence for the fix, filled from the pattern's groups.
    """

    code: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    confidence: float
    any_level: bool
    context: re.Pattern[str] | None
    hint: str


def _rule(
    code: str,
    pattern: str,
    confidence: float = 0.95,
    *,
    words: tuple[str, ...] = (),
    any_level: bool = False,
    context: str = "",
    hint: str = "",
) -> Rule:
    within = re.compile(context) if context else None
    return Rule(code, re.compile(pattern), words or words_of(pattern), confidence, any_level, within, hint)


_ARGUMENTS = (
    _rule("args.unrecognized", r"\berror: unrecognized arguments: (?P<name>\S+)"),
    _rule("args.invalid_choice", r"\berror: argument \S+: invalid choice"),
    _rule("args.invalid_value", r"\berror: (?:argument |the following arguments are required|ambiguous option)"),
    _rule("args.invalid_value", r"\bInput should be .{1,200}\[type=", 0.9),
    _rule(
        "context.exceeds_model",
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len \((?:\w+=)?(?P<limit>\d+)",
        hint="This model's own limit is {limit}.",
    ),
    _rule("context.exceeds_model", r"User-specified max_model_len .* is greater than the (?:derived )?max"),
    _rule(
        "scheduler.batched_tokens_below_context",
        r"max_num_batched_tokens \((?P<batched>\d+)\) is smaller than max_model_len \((?P<context>\d+)\)",
        hint="Raise --max-num-batched-tokens to at least {context}, or lower --max-model-len to {batched}.",
    ),
    _rule("parallelism.heads_not_divisible", r"attention heads \(\d+\) must be divisible by .{0,20}tensor.parallel"),
    _rule("parallelism.heads_not_divisible", r"\b\d+ is not divisible by \d+", 0.7, context=r"parallel|ensure_divisib"),
    _rule(
        "parallelism.not_enough_devices",
        r"World size \(\d+\) is larger than the number of available GPUs \((?P<found>\d+)\)",
        hint="This host offers {found}.",
    ),
    _rule("parallelism.not_enough_devices", r"Tensor parallel size \(?\d+\)? exceeds available GPUs"),
    _rule("parallelism.not_enough_devices", r"number of required \w+s? exceeds the total number of available"),
    _rule("parallelism.not_enough_devices", r"Not enough allowed NUMA nodes to bind threads of \d+ local"),
    _rule("parallelism.not_enough_devices", r"invalid device ordinal|local rank \d+ is out of bounds", 0.9),
    _rule(
        "parallelism.not_enough_devices", r"is larger than the (?:total )?number of available \w*(?:devices|GPUs)", 0.9
    ),
    _rule("port.in_use", r"\[Errno 98\]|\bEADDRINUSE\b|[Aa]ddress already in use"),
    _rule("port.in_use", r"error while attempting to bind on address"),
)
_MODEL = (
    _rule("tokenizer.missing", r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer"),
    _rule("tokenizer.missing", r"Tokenizer class \S+ does not exist|Unable to load vocabulary from file", 0.85),
    _rule(
        "tokenizer.missing",
        r"(?:No|Cannot find) tokenizer (?:file|found)|get tokenizer because `skip_tokenizer_init`",
        0.85,
    ),
    _rule(
        "tokenizer.missing",
        r"(?:No such file or directory|Not found|have a file named).{0,300}"
        r"\b(?:tokenizer(?:_config)?\.(?:json|model)|vocab\.json)",
        0.9,
        words=("tokenizer.", "tokenizer_config.", "vocab.json"),
    ),
    _rule("tokenizer.missing", r"expected str, bytes or os.PathLike object, not NoneType", 0.8, context="tokeniz"),
    _rule(
        "tokenizer.missing",
        r"^json\.decoder\.JSONDecodeError:|^Exception: .{1,80} at line \d+ column \d+",
        0.8,
        words=("JSONDecodeError", " at line "),
        context=r"tokenization_\w+\.py|tokenizer_file|TokenizerFast\.from_file",
    ),
    _rule(
        "chat_template.missing",
        r"default chat template is no longer allowed|tokenizer\.chat_template is not set|ChatTemplateResolutionError:"
        r"|[Nn]o chat template (?:provided|available|found|is (?:defined|set))|(?:not|n't) have a chat template",
        any_level=True,
    ),
    _rule("chat_template.missing", r"supplied chat template .{0,300}(?:appears path-like|failed to be opened)", 0.9),
    _rule("config.missing", r"Invalid repository ID or local directory specified|No config file found"),
    _rule("config.missing", r"is not a valid JSON file|config\.json.{0,40}(?:is empty|not valid)", 0.85),
    _rule("config.missing", r"does not appear to have a file named config\.json|Should have a `model_type` key"),
    _rule(
        "arch.transformers_too_old",
        r"Transformers does not recognize this architecture|version of Transformers is out of date",
    ),
    _rule("arch.transformers_too_old", r"cannot import name .* from 'transformers|requires transformers\W{0,3}\d", 0.7),
    _rule("arch.unsupported", r"Model architectures? .* (?:is|are) not supported|has no vLLM implementation"),
    _rule("arch.unsupported", r"Model architectures .* failed to be inspected", 0.75),
    _rule(
        "code.remote_required",
        r"requires you to execute the \w+ file in that repo|contains custom code which must be executed",
    ),
    _rule(
        "code.remote_required", r"(?:set the option|pass the argument|[Ss]etting|passing) .{0,20}trust_remote_code=True"
    ),
    _rule("quantization.config_missing", r"Cannot find the config file for \w+"),
    _rule("quantization.unknown", r"Unknown quantization method|Invalid quantization method"),
    _rule(
        "quantization.capability",
        r"[Qq]uantization (?:method \S+ is not supported for the current GPU|scheme is not supported for)",
    ),
    _rule("quantization.capability", r"fp8e4nv not supported in this architecture|_scaled_mm is only supported on"),
    _rule(
        "quantization.capability",
        r"(?:Marlin|FP8|NVFP4|AWQ|GPTQ|Machete)\S* .{0,60}requires .{0,40}(?:compute )?capability",
        0.9,
    ),
    _rule("quantization.capability", r"[Mm]in(?:imum)? capability: \d+"),
    _rule(
        "quantization.capability",
        r"(?:[Ff][Pp]8|[Ff]loat8|f8e4m3|[NM][VX]FP4|Marlin|AWQ|GPTQ|Machete|scaled_mm)\w* .{0,80}(?:CUDA *>= *\d|capability)",
        0.85,
        words=("CUDA", "capability"),
    ),
    _rule("quantization.unsupported_device", r"Failed to find a kernel that can implement the \w+"),
    _rule("quantization.unsupported_device", r"quantization is currently not supported in"),
    _rule(
        "dtype.bfloat16_unsupported",
        r"[Bb]float16 is (?:only supported on GPUs|not supported on)|does(?:n't| not) support .{0,12}bfloat16"
        r"|[Bb](?:f|float)16 requires .{0,40}capability",
    ),
    _rule("attention.block_size_unsupported", r"No common block size for|[Bb]lock.size .{0,30}(?:is )?not supported"),
    _rule("lora.rank", r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank", hint="Set --max-lora-rank {rank}."),
    _rule("lora.rank", r"max_lora_rank .{0,40}must be|lora_rank .{0,40}(?:exceeds|is larger than)", 0.85),
)
_WEIGHTS = (
    _rule("weights.missing", r"Cannot find any model weights with|Error no file named .{0,200}found in directory"),
    _rule("weights.missing", r"does not appear to have a file named .{0,80}(?:safetensors|\.bin)"),
    _rule("weights.missing", r"Following weights were not initialized from checkpoint", 0.8),
    _rule("weights.shard_missing", r"Weight files referenced in index but missing"),
    _rule("weights.shard_missing", r"No such file or directory: .{0,300}-\d{5}-of-\d{5}\.(?:safetensors|bin)"),
    _rule(
        "weights.truncated",
        r"incomplete metadata, file not fully covered|MetadataIncompleteBuffer|metadata incomplete|HeaderTooSmall"
        r"|header too small|InvalidHeaderLength|invalid header length",
    ),
    _rule(
        "weights.truncated", r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes|Ran out of input", 0.8
    ),
    _rule("weights.header_invalid", r"SafetensorError: .{0,40}(?:header|Header)"),
    _rule(
        "weights.header_invalid",
        r"^(?:MemoryError|OverflowError|UnicodeDecodeError|json\.decoder\.JSONDecodeError|struct\.error)\b",
        words=("MemoryError", "OverflowError", "DecodeError", "struct.error"),
        context=r"safetensors_(?:file_)?metadata|safe_open|length_of_metadata",
    ),
    _rule(
        "weights.pickle_refused",
        r"Weights only load failed|Unsupported (?:global|operand|class): GLOBAL|UnpicklingError",
    ),
    _rule("weights.pickle_refused", r"[Rr]efus(?:ed|es|ing) .{0,40}pickle", 0.9),
    _rule("weights.pickle_refused", r"serious vulnerability issue in `torch\.load`"),
    _rule("weights.tensor_unexpected", r"There is no module or parameter named"),
    _rule("weights.tensor_unexpected", r"^KeyError: '(?:model\.)?layers\.\d+\.", 0.85),
    _rule(
        "weights.shape_mismatch",
        r"size of tensor a \(\d+\) must match the size of tensor b",
        context="weight_loader|load_weights",
    ),
    _rule("weights.shape_mismatch", r"Trying to set a tensor of shape|size mismatch for [\w.]+: copying a param", 0.9),
    _rule("weights.shape_mismatch", r"Attempted to load weight \(.{0,80}into parameter|exceeds dimension size", 0.9),
    _rule(
        "weights.shape_mismatch",
        r"^AssertionError",
        0.85,
        context=r"assert [\w.]*(?:size|shape)\S* == \S*(?:size|shape)",
    ),
)
_MEMORY = (
    _rule(
        "memory.free_below_utilization",
        r"(?:Free|Available) memory on .{0,80}on startup is less than desired \wPU memory utilization",
    ),
    _rule("memory.free_below_utilization", r"Error in memory profiling", 0.7),
    _rule("memory.kv_request_exceeds_available", r"on kv cache allocation is less than requested memory for kv"),
    _rule("kv_cache.no_blocks", r"No available memory for the cache blocks"),
    _rule("kv_cache.no_blocks", r"# \wPU blocks: 0\b", any_level=True),
    _rule("kv_cache.no_blocks", r"Available KV cache memory: -", 0.6, any_level=True),
    _rule(
        "kv_cache.too_small",
        r"To serve at least one request with .{0,400}the estimated maximum model length is (?P<length>\d+)",
        hint="The engine's own estimate for this memory is --max-model-len {length}.",
    ),
    _rule(
        "kv_cache.too_small",
        r"model's max seq len \(\d+\) is larger than the maximum number of tokens .{0,30}in KV cache \((?P<length>\d+)",
        hint="The cache holds {length} tokens: --max-model-len must not be above that.",
    ),
    _rule("kv_cache.too_small", r"To serve at least one request with the model's max seq len"),
    _rule("memory.out_of_memory", r"(?:CUDA|HIP|XPU|NPU|MPS) (?:driver )?(?:error: )?out of memory", 0.97),
    _rule("memory.out_of_memory", r"(?<!ray\.exceptions\.)\bOutOfMemoryError\b", 0.97),
    _rule(
        "memory.out_of_memory",
        r"cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure .{0,4}'?out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|hipErrorOutOfMemory",
    ),
    # cuBLAS says no more than this when its own workspace doesn't fit.
    _rule("memory.out_of_memory", r"CUBLAS_STATUS_NOT_INITIALIZED", 0.6),
    _rule(
        "memory.out_of_memory",
        r"can't allocate memory: you tried to allocate|std::bad_alloc|\[Errno 12\] Cannot allocate"
        r"|MemoryError: Unable to allocate",
    ),
)
_DEVICE = (
    _rule(
        "gpu.lost",
        r"fallen off the bus|GPU.{0,40} is lost|NVMLError_GpuIsLost|Unable to determine the device handle for",
    ),
    _rule(
        "gpu.lost", r"No CUDA GPUs are available|Failed to infer device type|no CUDA-capable device is detected", 0.6
    ),
    _rule("gpu.lost", r"busy or unavailable|CUDA error: device unavailable|cudaErrorDevicesUnavailable", 0.6),
    # A container that lost its devices, or a driver that no longer knows the card.
    _rule("gpu.lost", r"Failed to initialize NVML: Unknown Error|NVMLError_Unknown|No devices were found", 0.6),
    _rule("gpu.xid", r"\bXid\b.{0,40}?: (?P<xid>\d+)", any_level=True, hint="The code is Xid {xid}."),
    _rule("gpu.xid", r"uncorrectable (?:ECC|NVLink) error|hardware stack error|GPU requires reset", any_level=True),
    _rule(
        "gpu.xid",
        r"CUDA error: (?:an illegal (?:memory access|instruction)|unspecified launch failure|misaligned address"
        r"|invalid program counter)",
        0.5,
    ),
    _rule(
        "driver.too_old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|cudaErrorInsufficientDriver",
    ),
    _rule(
        "driver.too_old", r"PTX was compiled with an unsupported toolchain|unsatisfied condition: (?:cuda|driver)", 0.9
    ),
    _rule("driver.mismatch", r"[Dd]river/library version mismatch|NVML/RM version mismatch|LibRmVersionMismatch"),
    _rule("driver.mismatch", r"API mismatch: the (?:client|NVIDIA kernel module) has"),
    _rule(
        "driver.mismatch",
        r"unsupported display driver / cuda driver combination|forward compatibility was attempted on",
    ),
    _rule(
        "driver.mismatch",
        r"couldn't communicate with the NVIDIA driver|Found no NVIDIA driver|system not yet initialized"
        r"|nvml error: driver not loaded",
        0.7,
    ),
    _rule("driver.mismatch", r"(?:libcuda|libnvidia-ml)\.so(?:\.1)?: cannot open shared object file", 0.7),
    _rule(
        "driver.no_kernel_image", r"no kernel image is available|NoKernelImageForDevice|device kernel image is invalid"
    ),
    _rule("driver.no_kernel_image", r"is not compatible with the current PyTorch installation", 0.8),
    _rule("driver.no_kernel_image", r"Value 'sm_\w+' is not defined for option 'gpu-name'", 0.85),
)
_SYSTEM = (
    _rule("shm.exhausted", r"Error while (?:creating|attaching to) shared memory segment"),
    _rule(
        "shm.exhausted",
        r"No space left on device.{0,80}(?:/dev/shm|shared memory)|(?:/dev/shm|shared memory).{0,200}No space left",
    ),
    _rule(
        "shm.exhausted",
        r"insufficient shared memory|out of shared memory|unable to (?:allocate|resize|open) shared memory",
    ),
    _rule("shm.exhausted", r"No space left on device.{0,40}/psm_|unable to write to file </torch_"),
    _rule("shm.exhausted", r"No space left on device", context=r"multiprocessing/shared_memory\.py"),
    _rule("shm.exhausted", r"shm_open.{0,80}(?:failed|No space|Cannot allocate)", 0.9),
    _rule("shm.exhausted", r"\bBus error\b|\bSIGBUS\b", 0.85),
    _rule("nccl.hang", r"Watchdog caught collective operation timeout|Timeout at NCCL work|watchdog got stuck for"),
    _rule("nccl.hang", r"NCCL operations have failed or timed out|[Hh]eartbeat monitor timed out", 0.9),
    _rule("nccl.hang", r"NCCL.{0,120}(?:timed out|[Tt]imeout)|gloo.{0,80}Timed out waiting", 0.85),
    _rule(
        "nccl.init_failed",
        r"NCCL error|unhandled (?:system|cuda) error|\bnccl(?:System|Internal|Remote|InvalidUsage|InvalidArgument)\w*\b",
    ),
    _rule("nccl.init_failed", r"no socket interface found|Failed to initialize any NET plugin|DistBackendError"),
    _rule(
        "nccl.init_failed",
        r"client has failed to connect to any network addresses|DistNetworkError|DistStoreError|Connect to .{0,60}failed : ",
        0.75,
    ),
    _rule(
        "process.killed_by_oom",
        r"[Oo]ut of memory: Kill(?:ed)? process|\boom-kill:|invoked oom-killer|\bOOMKilled\b",
        any_level=True,
    ),
    _rule(
        "process.killed_by_oom",
        r"killed due to memory pressure|\boom_reaper\b|exited with code 137\b|node running low on memory"
        r"|has been killed by the OOM killer|result 'oom-kill'",
        0.9,
        any_level=True,
    ),
    _rule("process.killed_by_oom", r"^(?:\S+: line \d+: +\d+ )?Killed\b(?!:)", 0.8),
    _rule("disk.full", r"No space left on device|\[Errno 28\]|\[Errno 122\]|Disk quota exceeded"),
    _rule("disk.full", r"Not enough free disk space", 0.8),
    _rule("memory.out_of_memory", r"^MemoryError\b", 0.7),
)
_HUB = (
    _rule("hub.gated", r"Cannot access gated repo|access a gated repo|is a gated repository|\bGatedRepoError\b"),
    _rule(
        "hub.gated",
        r"Access to (?:model|dataset) .{0,200}is restricted|not in the authorized list|review from the repo authors",
    ),
    _rule("hub.gated", r"enable access to public gated repositor"),
    _rule(
        "hub.unauthorized",
        r"401 Client Error|Client error '40[13]|HTTP(?:Error| status)?:? 401\b|Invalid credentials in Authorization header",
    ),
    _rule(
        "hub.unauthorized",
        r"Invalid (?:username or password|user token)|[Ii]nvalid token passed|403 Client Error|403 Forbidden: "
        r"|LocalTokenNotFoundError|[Tt]oken is required \("
        r"|[Tt]oken .{0,80}(?:is expired|has expired|is invalid|is not valid)",
    ),
    _rule(
        "hub.rate_limited",
        r"429 Client Error|\b429\b.{0,10}Too Many Requests|hit the rate limit|had to rate limit"
        r"|[Rr]ate limit (?:exceeded|reached)|exceeded .{0,20}rate limit|HTTP Error 429",
    ),
    _rule("hub.offline_uncached", r"outgoing traffic has been disabled|OfflineModeIsEnabled|ffline mode is enabled"),
    _rule(
        "hub.unreachable", r"We couldn't connect to '?http|error happened while trying to locate the files? on the Hub"
    ),
    _rule("hub.unreachable", r"LocalEntryNotFoundError.{0,300}check your (?:internet )?connection", 0.9),
    _rule("hub.offline_uncached", r"LocalEntryNotFoundError", 0.8),
    _rule(
        "hub.unreachable",
        r"(?:Max retries exceeded|Failed to resolve|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
        r"|CERTIFICATE_VERIFY_FAILED|5\d\d Server Error|Server error '5\d\d|Connection refused)"
        r".{0,300}(?:huggingface|hf\.co|hf-mirror|modelscope)",
        0.9,
        words=("huggingface", "hf.co", "hf-mirror", "modelscope"),
    ),
    _rule(
        "hub.unreachable",
        r"(?:Name or service not known|[Tt]emporary failure in name resolution|Network is unreachable|Connection refused"
        r"|CERTIFICATE_VERIFY_FAILED|timed out)$",
        0.75,
        words=("not known", "emporary failure", "unreachable", "refused", "VERIFY_FAILED", "timed out"),
        context=r"huggingface_hub/|hf_hub_download|snapshot_download",
    ),
    _rule(
        "hub.unreachable",
        r"(?:huggingface|hf\.co).{0,200}(?:[Tt]imed out|refused|unreachable|verify failed)",
        0.85,
        words=("imed out", "refused", "unreachable", "verify failed"),
    ),
    _rule(
        "hub.unreachable",
        r"(?:httpx|requests|urllib3|aiohttp)\.\S*(?:Connect|Timeout|Proxy|SSL)\w*:",
        0.7,
        words=("httpx.", "requests.", "urllib3.", "aiohttp."),
    ),
    _rule("hub.unreachable", r"socket\.gaierror: \[Errno -\d\]", 0.6),
    _rule(
        "path.not_found",
        r"Repo id must (?:be in the form|use alphanumeric)|is not a local folder and is not a valid model",
    ),
    _rule(
        "path.not_found",
        r"404 Client Error.{0,200}huggingface|(?:Repository|Revision) Not Found for url|not a valid git identifier",
        0.8,
    ),
)
_HANG = (
    _rule("engine.hung", r"No available (?:shared memory broadcast )?block found in \d+ second", 0.6, any_level=True),
    _rule("engine.hung", r"RPC call to \S+ timed out|Engine iteration timed out", 0.9),
    _rule("engine.hung", r"No heartbeat received from", 0.8),
    _rule("engine.hung", r"^TimeoutError$", 0.85, context=r"shm_broadcast\.py"),
    _rule("engine.hung", r"Timed out waiting for engine core|[Hh]ealth check (?:timed out|failed)", 0.7),
)

# The order decides between rules that match the same line: what is special comes before what is general.
RULES: tuple[Rule, ...] = (
    *_ARGUMENTS,
    *_MEMORY,
    *_MODEL,
    *_WEIGHTS,
    *_DEVICE,
    *_SYSTEM,
    *_HUB,
    *_HANG,
)
