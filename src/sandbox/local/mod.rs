//! Sandboxes out of the machine's own kernel: nothing installed, no daemon, no privileges needed.
//!
//! The host side ([`backend`]) starts the embedded guest program as the sandbox's init and hands it a
//! [`crate::protocol::setup::Setup`]; init (`root`, `cage`, `namespaces`) builds the sandbox from within. All that
//! is written in a sandbox lives in memory file systems of its own mount namespace, so nothing is left when init ends.
//!
//! Where namespaces are refused, a sandbox is a folder of the machine (`copies`) which init removes, inside
//! Landlock's rules (`fence`) or without any.

#[cfg(feature = "host")]
pub mod backend;
pub(crate) mod cage;
#[cfg(feature = "host")]
mod copies;
pub(crate) mod fence;
#[cfg(feature = "host")]
mod layers;
pub(crate) mod namespaces;
#[cfg(feature = "host")]
pub mod pip;
#[cfg(feature = "host")]
pub mod programs;
#[cfg(feature = "host")]
pub mod refusal;
pub(crate) mod removal;
pub(crate) mod root;

/// The guest's own directory in every sandbox.
pub const PRIVATE: &str = root::PRIVATE;
