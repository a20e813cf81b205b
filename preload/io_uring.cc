// Replaces syscall(): io_uring_setup fails with ENOSYS, so that a program falls back to epoll,
// unless GCR_IO_URING is "allow" in the environment. CRIU cannot dump a ring. libuv, and so uvloop
// and PyTorch's TCPStore, creates its ring with this function.
//
// Every other call goes to the kernel as in the C library's function: without a stack frame, so
// that vfork and clone work, and without a cancellation point.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#ifndef __x86_64__
#error "syscall is written for x86-64"
#endif

static_assert(SYS_io_uring_setup == 425 && ENOSYS == 38, "the assembly below has these numbers");

extern "C" bool gcr_preload_allows_io_uring();

bool gcr_preload_allows_io_uring() {
  static const bool allowed = [] {
    const char* text = ::getenv("GCR_IO_URING");
    return text != nullptr && ::strcmp(text, "allow") == 0;
  }();
  return allowed;
}

// The kernel uses only the lower half of the number. The two arguments of io_uring_setup are saved
// across the call of the function above.
asm(R"(
    .text
    .globl syscall
    .type syscall, @function
    .p2align 4
syscall:
    .cfi_startproc
    endbr64
    cmp $425, %edi
    je 2f
1:  mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    mov %r9, %r8
    mov 8(%rsp), %r9
    syscall
    cmp $-4095, %rax
    jae 3f
    ret
2:  push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    call gcr_preload_allows_io_uring
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %al, %al
    jne 1b
    mov $-38, %eax
3:  neg %eax
    push %rax
    .cfi_adjust_cfa_offset 8
    call __errno_location@PLT
    pop %rdx
    .cfi_adjust_cfa_offset -8
    mov %edx, (%rax)
    mov $-1, %rax
    ret
    .cfi_endproc
    .size syscall, . - syscall
)");
