/* Stand-in for NVIDIA's libcuda.so.1: it loads, answers cuInit with a chosen code, and has no devices.
 *
 * Freestanding: no libc, so that it loads into any process. Compiled once; stubs.py writes each host's values into
 * `settings`; the variable TORCHTAP_SIMULATED_CUINIT of a process wins over its code. The symbol torchtap_simulated_gpu tells whoever asks that this is no GPU.
 */
typedef int CUresult;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_INITIALIZED = 3, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_NOT_FOUND = 500 };

#define EXPORT __attribute__((visibility("default")))

static const volatile struct {
    char mark[16];
    int cu_init;        /* what cuInit returns (CUresult), or -1: never returns, as with a GPU that does not answer */
    int driver_version; /* what cuDriverGetVersion says, as in 13010 for CUDA 13.1 */
} settings = {"torchtap-values", 0, 0};

EXPORT const int torchtap_simulated_gpu = 1;

static void wait_for_ever(void) {
    struct { long seconds, nanoseconds; } hour = {3600, 0};
    for (;;) {
#if defined(__x86_64__)
        long ignored;
        __asm__ volatile("syscall" : "=a"(ignored) : "a"(35L), "D"(&hour), "S"(0L) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
        register long number __asm__("x8") = 101;
        register long first __asm__("x0") = (long)&hour;
        register long second __asm__("x1") = 0;
        __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
#else
#error "no nanosleep for this processor yet"
#endif
    }
}

/* The code of this process: that of its environment, else the host's. */
extern char **environ __attribute__((weak)); /* libc's, where the process has one */

static int code(void) {
    static const char name[] = "TORCHTAP_SIMULATED_CUINIT=";
    for (char **entry = &environ ? environ : 0; entry && *entry; entry++) {
        const char *wanted = name, *text = *entry;
        while (*wanted && *wanted == *text) wanted++, text++;
        if (*wanted || *text < '0' || *text > '9') continue;
        int number = 0;
        while (*text >= '0' && *text <= '9') number = 10 * number + *text++ - '0';
        return number;
    }
    return settings.cu_init;
}

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    int result = code();
    if (result == -1) wait_for_ever();
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = settings.driver_version;
    return CUDA_SUCCESS;
}

/* None: so torch.cuda.is_available() stays False, and nothing tries to compute on a GPU that is not there. */
EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = 0;
    return code() == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* Stands for every other function of the driver. */
static CUresult no_device(void) { return CUDA_ERROR_NO_DEVICE; }

/* cudart asks for private tables right after cuInit and gives up without them: size in bytes, then functions. */
static const void *const private_functions[] = {
    (void *)(16 * sizeof(void *)), no_device, no_device, no_device, no_device, no_device, no_device, no_device,
    no_device, no_device, no_device, no_device, no_device, no_device, no_device, no_device,
};

EXPORT CUresult cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = private_functions;
    return CUDA_SUCCESS;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *status);

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, unsigned long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *status) {
    (void)version, (void)flags;
    *function = same(name, "cuInit")                ? (void *)cuInit
                : same(name, "cuDriverGetVersion")  ? (void *)cuDriverGetVersion
                : same(name, "cuDeviceGetCount")    ? (void *)cuDeviceGetCount
                : same(name, "cuGetExportTable")    ? (void *)cuGetExportTable
                : same(name, "cuGetProcAddress")    ? (void *)cuGetProcAddress_v2
                                                    : (void *)no_device;
    if (status) *status = 0; /* CU_GET_PROC_ADDRESS_SUCCESS */
    return CUDA_SUCCESS;
}
