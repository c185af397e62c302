//! The gym over streams, for programs in any language.
//!
//! Takes in requests, gives out the environment's answers. It holds no logic of its own.

pub mod stdio;
