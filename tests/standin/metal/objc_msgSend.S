/* objc_msgSend of the stand-in: keeps every register that may carry an argument, asks for the method, and jumps to it as
   if the caller had called it. A null receiver returns zero in the registers that results come in. Assembled apart from
   the C++ sources, because compilers drop assembly at the top level when they optimise at link time. */

#if defined(__APPLE__)
#define SYMBOL(name) _##name
#define HIDDEN(name)
#define FUNCTION(name)
#define SIZE(name)
#define CALL(name) SYMBOL(name)
#else
#define SYMBOL(name) name
#define HIDDEN(name) .hidden name
#define FUNCTION(name) .type name, %function
#define SIZE(name) .size name, . - name
#define CALL(name) name
#endif

  .text
  .globl SYMBOL(objc_msgSend)
  HIDDEN(cistern_standin_metal_lookup)
  FUNCTION(objc_msgSend)

#if defined(__x86_64__)

/* Arguments: rdi rsi rdx rcx r8 r9, xmm0-7, and in al how many of the latter; more are on the stack and stay there. */
  .p2align 4
SYMBOL(objc_msgSend):
  .cfi_startproc
  testq %rdi, %rdi
  je 1f
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $192, %rsp
  movq %rdi, -8(%rbp)
  movq %rsi, -16(%rbp)
  movq %rdx, -24(%rbp)
  movq %rcx, -32(%rbp)
  movq %r8, -40(%rbp)
  movq %r9, -48(%rbp)
  movq %rax, -56(%rbp)
  movups %xmm0, -80(%rbp)
  movups %xmm1, -96(%rbp)
  movups %xmm2, -112(%rbp)
  movups %xmm3, -128(%rbp)
  movups %xmm4, -144(%rbp)
  movups %xmm5, -160(%rbp)
  movups %xmm6, -176(%rbp)
  movups %xmm7, -192(%rbp)
  call CALL(cistern_standin_metal_lookup)
  movq %rax, %r11
  movq -8(%rbp), %rdi
  movq -16(%rbp), %rsi
  movq -24(%rbp), %rdx
  movq -32(%rbp), %rcx
  movq -40(%rbp), %r8
  movq -48(%rbp), %r9
  movq -56(%rbp), %rax
  movups -80(%rbp), %xmm0
  movups -96(%rbp), %xmm1
  movups -112(%rbp), %xmm2
  movups -128(%rbp), %xmm3
  movups -144(%rbp), %xmm4
  movups -160(%rbp), %xmm5
  movups -176(%rbp), %xmm6
  movups -192(%rbp), %xmm7
  movq %rbp, %rsp
  popq %rbp
  .cfi_def_cfa %rsp, 8
  jmpq *%r11
1:
  xorl %eax, %eax
  xorl %edx, %edx
  xorps %xmm0, %xmm0
  xorps %xmm1, %xmm1
  retq
  .cfi_endproc

#elif defined(__aarch64__)

/* Arguments: x0-x7, q0-q7, and in x8 where a large result goes; more are on the stack and stay there. */
  .p2align 2
SYMBOL(objc_msgSend):
  .cfi_startproc
  cbz x0, 1f
  stp x29, x30, [sp, #-224]!
  .cfi_def_cfa_offset 224
  .cfi_offset 29, -224
  .cfi_offset 30, -216
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  bl CALL(cistern_standin_metal_lookup)
  mov x16, x0
  ldp q6, q7, [sp, #192]
  ldp q4, q5, [sp, #160]
  ldp q2, q3, [sp, #128]
  ldp q0, q1, [sp, #96]
  ldr x8, [sp, #80]
  ldp x6, x7, [sp, #64]
  ldp x4, x5, [sp, #48]
  ldp x2, x3, [sp, #32]
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #224
  .cfi_def_cfa_offset 0
  .cfi_restore 29
  .cfi_restore 30
  br x16
1:
  mov x1, #0
  movi d0, #0
  movi d1, #0
  movi d2, #0
  movi d3, #0
  ret
  .cfi_endproc

#else
#error "the stand-in's objc_msgSend is written for x86-64 and arm64"
#endif

  SIZE(objc_msgSend)
#if defined(__linux__)
  .section .note.GNU-stack, "", %progbits
#endif
