/* Stand-in for NVIDIA's libnvidia-ml.so.1: it loads, answers nvmlInit with a chosen code and counts GPUs.
 *
 * Freestanding, compiled once; stubs.py writes each host's values into `settings`. nvidia-smi is simulated apart from
 * it (smi.py): the real nvidia-smi would ask this library for a private table and refuse it.
 */
typedef int nvmlReturn_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_INSUFFICIENT_SIZE = 7 };

#define EXPORT __attribute__((visibility("default")))

static const volatile struct {
    char mark[16];
    int nvml_init;           /* what nvmlInit returns (nvmlReturn_t) */
    int devices;             /* GPUs visible in this container */
    int cuda_driver_version; /* as in 13010 for CUDA 13.1 */
    char driver[32];         /* version of the driver, as in 590.48.01 */
} settings = {"torchtap-values", 0, 0, 0, ""};

EXPORT const int torchtap_simulated_gpu = 1;

EXPORT nvmlReturn_t nvmlInit_v2(void) { return settings.nvml_init; }
EXPORT nvmlReturn_t nvmlInit(void) { return settings.nvml_init; }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return settings.nvml_init; }
EXPORT nvmlReturn_t nvmlShutdown(void) { return settings.nvml_init ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    if (settings.nvml_init) return NVML_ERROR_UNINITIALIZED;
    *count = settings.devices;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    if (settings.nvml_init) return NVML_ERROR_UNINITIALIZED;
    for (unsigned at = 0; at < length; at++)
        if (!(version[at] = settings.driver[at])) return NVML_SUCCESS;
    return NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = settings.cuda_driver_version;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* Single devices are not simulated here. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    (void)index, (void)device;
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    return result == NVML_SUCCESS ? "Success" : "simulated by torchtap's tests";
}
