// A library that only defines versions, as an old C library does (old_libc.map).
int gcr_test_symbol(void);
int gcr_test_symbol(void) { return 0; }
