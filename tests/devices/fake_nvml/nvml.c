/* A library with NVML's names and structures, and devices that a text file describes.
 *
 * Built as libnvidia-ml.so.1 and loaded by nvidia-ml-py in place of the driver's library. The file named by
 * FAKE_NVML_CONTROL is read anew in every call; __init__.py beside this file writes it. Its lines:
 *
 *     devices 2                         how many devices there are
 *     driver 580.95.05                  a value of the system
 *     0.memory_used 1000000             a value of device 0; without the line its counter is not supported
 *     0.process 4711 500000000          a compute process (pid, bytes; -1 = not told), any number of them
 *     0.graphics 4712 1000              a graphics process
 *     0.lost                            device 0 fell off the bus
 *     0.fail nvmlDeviceGetName 999      this call fails with this code ("*": every call); without a device: fail ...
 *     0.hang nvmlDeviceGetName          this call does not return until the line is gone; likewise hang ...
 *     down 9                            the driver is being reset or reloaded: every call fails with this code
 *     driver_start 2                    the driver's starts so far: what was opened at an earlier one does not work
 *     xid 0 79                          device 0 raised XID 79; each line is one event, new ones come last
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { DEVICES_MAX = 64, CONTROL_BYTES_MAX = 1 << 18, POLL_US = 5000 };

typedef struct { int index; } Device;
typedef struct { unsigned long long registered; int delivered; } EventSet;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

static Device devices[DEVICES_MAX];
/* The driver's start that this library was opened at, 0 while it is shut down, and how often it was opened. */
static unsigned long long opened_at;
static int openings;
static const unsigned long long XID_CRITICAL_ERROR = 8;

/* The whole control file; the caller frees it. */
static char *control(void) {
    char *text = calloc(1, CONTROL_BYTES_MAX);
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (!fread(text, 1, CONTROL_BYTES_MAX - 1, file)) text[0] = 0;
        fclose(file);
    }
    return text;
}

/* The rest of the nth line that begins with `key`, copied to `out`; 0 when there is none. */
static int find(const char *text, const char *key, int nth, char *out, size_t size) {
    size_t length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, length) || (line[length] != ' ' && line[length] != '\n' && line[length])) continue;
        if (nth--) continue;
        const char *rest = line + length + (line[length] == ' ');
        snprintf(out, size, "%.*s", (int)strcspn(rest, "\n"), rest);
        return 1;
    }
    return 0;
}

/* The key of a device's line ("0.name"), or of the system's for index -1. */
static void key_of(char *out, size_t size, int index, const char *name) {
    if (index < 0) snprintf(out, size, "%s", name);
    else snprintf(out, size, "%d.%s", index, name);
}

static int has_rule(const char *text, int index, const char *rule, const char *function, int *code) {
    char key[96], line[160], name[128];
    key_of(key, sizeof key, index, rule);
    for (int nth = 0; find(text, key, nth, line, sizeof line); nth++)
        if (sscanf(line, "%127s %d", name, code) >= 1 && (!strcmp(name, "*") || !strcmp(name, function))) return 1;
    return 0;
}

static unsigned long long driver_start(const char *text) {
    char value[32];
    return find(text, "driver_start", 0, value, sizeof value) ? strtoull(value, NULL, 10) : 1;
}

/* What every call does first: hang, fail or be lost where the control file says so. */
static int enter(int index, const char *function) {
    for (;;) {
        char *text = control(), key[64], rest[8];
        int code = SUCCESS, ignored;
        int hangs = has_rule(text, index, "hang", function, &ignored);
        int opens = !strcmp(function, "nvmlInitWithFlags");
        key_of(key, sizeof key, index, "lost");
        if (hangs) code = SUCCESS;
        else if (find(text, "down", 0, rest, sizeof rest)) code = atoi(rest);
        else if (!opens && opened_at != driver_start(text)) code = UNINITIALIZED;
        else if (index >= 0 && find(text, key, 0, rest, sizeof rest)) code = GPU_IS_LOST;
        else if (!has_rule(text, index, "fail", function, &code)) code = SUCCESS;
        free(text);
        if (!hangs) return code;
        usleep(POLL_US);
    }
}

static int text_value(int index, const char *name, char *out, unsigned size) {
    char *text = control(), key[96];
    key_of(key, sizeof key, index, name);
    int found = find(text, key, 0, out, size);
    free(text);
    return found ? SUCCESS : NOT_SUPPORTED;
}

static int number(int index, const char *name, unsigned long long *out) {
    char value[64];
    int code = text_value(index, name, value, sizeof value);
    if (!code) *out = strtoull(value, NULL, 10);
    return code;
}

static int small_number(int index, const char *name, unsigned *out) {
    unsigned long long value;
    int code = number(index, name, &value);
    if (!code) *out = (unsigned)value;
    return code;
}

#define ENTER(index)                          \
    do {                                      \
        int code_ = enter(index, __func__);   \
        if (code_) return code_;              \
    } while (0)
#define COUNTER(function, name) \
    int function(Device *device, unsigned *out) { ENTER(device->index); return small_number(device->index, name, out); }
#define BIG_COUNTER(function, name) \
    int function(Device *device, unsigned long long *out) { ENTER(device->index); return number(device->index, name, out); }
#define TEXT(function, name)                                \
    int function(Device *device, char *out, unsigned size) { \
        ENTER(device->index);                               \
        return text_value(device->index, name, out, size);  \
    }

/* Like the driver's: counted, and only the first opening, after the last shutdown, opens anything. */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(-1);
    for (int index = 0; index < DEVICES_MAX; index++) devices[index].index = index;
    if (!openings++) {
        char *text = control();
        opened_at = driver_start(text);
        free(text);
    }
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!openings) return UNINITIALIZED;
    if (!--openings) opened_at = 0;
    return SUCCESS;
}

/* nvidia-ml-py has words of its own for the codes it knows. */
const char *nvmlErrorString(int code) {
    (void)code;
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(-1); return text_value(-1, "driver", out, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(-1); return small_number(-1, "cuda", (unsigned *)out); }

int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(-1); return small_number(-1, "devices", out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    unsigned count = 0;
    ENTER(-1);
    if (small_number(-1, "devices", &count) || index >= count) return INVALID_ARGUMENT;
    ENTER((int)index);
    *out = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    unsigned count = 0;
    char found[96];
    ENTER(-1);
    small_number(-1, "devices", &count);
    for (unsigned index = 0; index < count && index < DEVICES_MAX; index++) {
        if (text_value((int)index, "uuid", found, sizeof found) || strcmp(uuid, found)) continue;
        ENTER((int)index);
        *out = &devices[index];
        return SUCCESS;
    }
    return NOT_FOUND;
}

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out) {
    ENTER(device->index);
    memset(out, 0, sizeof *out);
    return text_value(device->index, "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    ENTER(device->index);
    int code = number(device->index, "memory_total", &out->total);
    if (!code) code = number(device->index, "memory_used", &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    if (out->version != (sizeof(Memory2) | 2 << 24)) return ARGUMENT_VERSION_MISMATCH;
    ENTER(device->index);
    out->reserved = 0;
    number(device->index, "memory_reserved", &out->reserved);
    int code = number(device->index, "memory_total", &out->total);
    if (!code) code = number(device->index, "memory_used", &out->used);
    if (!code) out->free = out->total - out->used - out->reserved;
    return code;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    ENTER(device->index);
    int code = small_number(device->index, "utilization", &out->gpu);
    return code ? code : small_number(device->index, "memory_utilization", &out->memory);
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER(device->index);
    return small_number(device->index, "temperature", out);
}

COUNTER(nvmlDeviceGetPowerUsage, "power")
COUNTER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
COUNTER(nvmlDeviceGetFanSpeed, "fan")
COUNTER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
BIG_COUNTER(nvmlDeviceGetTotalEnergyConsumption, "energy")
BIG_COUNTER(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
BIG_COUNTER(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")

int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *out) {
    ENTER(device->index);
    return small_number(device->index, kind == 2 ? "clock_memory" : "clock_sm", out);
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned error, unsigned counter, unsigned long long *out) {
    (void)counter;
    ENTER(device->index);
    return number(device->index, error == 1 ? "ecc_uncorrected" : "ecc_corrected", out);
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *fixed, unsigned *broken, unsigned *pending, unsigned *failed) {
    ENTER(device->index);
    *fixed = *broken = 0;
    int code = small_number(device->index, "remap_pending", pending);
    return code ? code : small_number(device->index, "remap_failed", failed);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *pending) {
    ENTER(device->index);
    int code = small_number(device->index, "mig", now);
    *pending = code ? 0 : *now;
    return code;
}

static int list_processes(int index, const char *kind, unsigned *count, Process *out) {
    char *text = control(), key[96], line[96];
    unsigned room = *count, listed = 0;
    key_of(key, sizeof key, index, kind);
    for (; find(text, key, (int)listed, line, sizeof line); listed++) {
        long long used = -1;
        unsigned pid = 0;
        if (!out || listed >= room) continue;
        sscanf(line, "%u %lld", &pid, &used);
        out[listed] = (Process){pid, (unsigned long long)used, ~0u, ~0u};
    }
    free(text);
    *count = listed;
    return listed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(function, kind)                                 \
    int function(Device *device, unsigned *count, Process *out) { \
        ENTER(device->index);                                     \
        return list_processes(device->index, kind, count, out);   \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "process")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "process")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")

int nvmlEventSetCreate(EventSet **out) {
    char line[64];
    ENTER(-1);
    EventSet *set = calloc(1, sizeof *set);
    /* Like the driver: what happened before somebody listened is not told. */
    char *text = control();
    while (find(text, "xid", set->delivered, line, sizeof line)) set->delivered++;
    free(text);
    *out = set;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    ENTER(device->index);
    if (types & ~XID_CRITICAL_ERROR) return NOT_SUPPORTED;
    set->registered |= 1ull << device->index;
    return SUCCESS;
}

static int a_registered_device_is_lost(const char *text, const EventSet *set) {
    char key[64], rest[8];
    for (int index = 0; index < DEVICES_MAX; index++) {
        key_of(key, sizeof key, index, "lost");
        if (set->registered >> index & 1 && find(text, key, 0, rest, sizeof rest)) return 1;
    }
    return 0;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    ENTER(-1);
    for (long waited_us = 0; waited_us <= timeout_ms * 1000L; waited_us += POLL_US) {
        char line[64], *text = control();
        int index = -1, xid = 0;
        int is_lost = a_registered_device_is_lost(text, set);
        int is_down = find(text, "down", 0, line, sizeof line) ? atoi(line) : SUCCESS;
        int is_raised = find(text, "xid", set->delivered, line, sizeof line);
        free(text);
        if (is_down) return is_down;
        if (is_raised) {
            set->delivered++;
            sscanf(line, "%d %d", &index, &xid);
            if (index < 0 || index >= DEVICES_MAX || !(set->registered >> index & 1)) continue;
            *out = (EventData){&devices[index], XID_CRITICAL_ERROR, (unsigned long long)xid, ~0u, ~0u};
            return SUCCESS;
        }
        if (is_lost) return GPU_IS_LOST;
        usleep(POLL_US);
    }
    return TIMEOUT;
}

int nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}
