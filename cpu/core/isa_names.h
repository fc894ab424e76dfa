// JAXGNN_EACH_ISA(DECLARE) declares an entry point for every instruction set that is compiled.
#pragma once

#define JAXGNN_EACH_ISA(DECLARE) DECLARE(baseline) DECLARE(avx2) DECLARE(avx512)
