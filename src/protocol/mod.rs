//! Pure data that crosses a border: between host and guest, to disk, or to a model.
//!
//! Takes in nothing and does nothing; every type here is only serialised and compared.

#[cfg(feature = "host")]
pub mod episode;
#[cfg(feature = "host")]
pub mod message;
pub mod operation;
#[cfg(feature = "host")]
pub mod record;
pub mod setup;
#[cfg(feature = "host")]
pub mod verdict;
pub mod wire;
