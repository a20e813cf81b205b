// A target for precompiled headers needs a source.
