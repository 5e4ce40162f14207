/* Tile instructions for a CPU that has none: a handler of SIGILL that does what Intel's manual says of them.
 *
 * Written from the Software Developer's Manual, volume 2 (LDTILECFG, TILELOADD, TDPBF16PS, TDPBSSD, TILESTORED,
 * TILERELEASE) and its chapter on VEX, not from provision/amx. What it cannot tell is whether silicon works.
 * install(wrong): with wrong = 1, TDP* forgets one element, as a broken unit might.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct tile { int rows, bytes; uint8_t data[16][64]; };
static struct tile tiles[8];
static int configured, forgets;

static const int REGISTERS[16] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };

static void give_up(void) { signal(SIGILL, SIG_DFL); raise(SIGILL); }

static void configure(const uint8_t *config)
{
    if (config[0] != 1) give_up(); /* one palette */
    for (int i = 2; i < 16; i++) if (config[i]) give_up(); /* reserved */
    for (int i = 0; i < 8; i++) {
        memset(&tiles[i], 0, sizeof tiles[i]);
        tiles[i].bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8;
        tiles[i].rows = config[48 + i];
        if (tiles[i].bytes > 64 || tiles[i].rows > 16) give_up();
    }
    configured = 1;
}

static float bf16(const uint8_t *at)
{
    uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* dest += first x second, as the pseudo code of both instructions: dwords m, k, n. */
static void multiply(int dest, int first, int second, int is_bf16)
{
    struct tile *c = &tiles[dest], *a = &tiles[first], *b = &tiles[second];
    if (!configured || a->rows != c->rows || b->bytes != c->bytes || b->rows != a->bytes / 4) give_up();
    for (int m = 0; m < c->rows; m++)
        for (int k = 0; k < a->bytes / 4; k++)
            for (int n = 0; n < c->bytes / 4; n++) {
                uint8_t *left = &a->data[m][4 * k], *right = &b->data[k][4 * n], *sum = &c->data[m][4 * n];
                if (forgets && m == 3 && n == 5 && k == 7) continue;
                if (is_bf16) {
                    float value;
                    memcpy(&value, sum, 4);
                    value += bf16(left) * bf16(right) + bf16(left + 2) * bf16(right + 2);
                    memcpy(sum, &value, 4);
                } else {
                    int32_t value;
                    memcpy(&value, sum, 4);
                    for (int i = 0; i < 4; i++) value += (int8_t)left[i] * (int8_t)right[i];
                    memcpy(sum, &value, 4);
                }
            }
}

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    (void)number; (void)info;
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84)) { give_up(); return; } /* 0F38.W0.L0 */
    int index_high = !(code[1] & 0x40) * 8, base_high = !(code[1] & 0x20) * 8;
    int vvvv = ~code[2] >> 3 & 15, prefix = code[2] & 3, opcode = code[3], modrm = code[4];
    int mode = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7, length = 5;
    uint8_t *memory = 0;
    int64_t stride = 0;
    if (mode == 0 && rm == 4) {
        int sib = code[5];
        length = 6;
        memory = (uint8_t *)registers[REGISTERS[(sib & 7) + base_high]];
        stride = registers[REGISTERS[(sib >> 3 & 7) + index_high]] << (sib >> 6);
    } else if (mode == 0) {
        memory = (uint8_t *)registers[REGISTERS[rm + base_high]];
    } else if (mode != 3) {
        give_up();
        return;
    }
    if (opcode == 0x49 && prefix == 0 && mode == 0) configure(memory);
    else if (opcode == 0x49 && prefix == 0 && modrm == 0xc0) configured = 0;
    else if (opcode == 0x4b && prefix == 3 && stride && configured)
        for (int row = 0; row < tiles[reg].rows; row++)
            memcpy(tiles[reg].data[row], memory + row * stride, tiles[reg].bytes);
    else if (opcode == 0x4b && prefix == 2 && stride && configured)
        for (int row = 0; row < tiles[reg].rows; row++)
            memcpy(memory + row * stride, tiles[reg].data[row], tiles[reg].bytes);
    else if (opcode == 0x5c && prefix == 2 && mode == 3) multiply(reg, rm, vvvv, 1);
    else if (opcode == 0x5e && prefix == 3 && mode == 3) multiply(reg, rm, vvvv, 0);
    else { give_up(); return; }
    registers[REG_RIP] += length;
}

void install(int wrong)
{
    struct sigaction action = { 0 };
    forgets = wrong;
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, 0);
}

int is_configured(void) { return configured; }
