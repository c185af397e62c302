//! patchgym: a multi-turn software-engineering gym.
//!
//! ```text
//!  task ──▶ env.reset ──▶ agent loop ◀──▶ model
//!             │  ▲            │
//!    sandbox ─┘  └─ tools ◀───┘        every event ──▶ trajectory (append-only)
//!             │                                             │
//!             └─ patch ──▶ grade (fresh sandbox) ──▶ verdict┴──▶ report · predictions
//! ```
//!
//! The modules below stand in the order data flows. A module uses those above it, never those below.

pub mod protocol;
pub mod text;

#[cfg(feature = "host")]
pub mod config;
#[cfg(feature = "host")]
pub mod data;
#[cfg(feature = "host")]
pub mod digest;
#[cfg(feature = "host")]
pub mod task;

pub mod sandbox;

pub mod guest;

#[cfg(feature = "host")]
pub mod agent;
#[cfg(feature = "host")]
pub mod batch;
#[cfg(feature = "host")]
pub mod cli;
#[cfg(feature = "host")]
pub mod env;
#[cfg(feature = "host")]
pub mod grade;
#[cfg(feature = "host")]
pub mod model;
#[cfg(feature = "host")]
pub mod serve;
#[cfg(feature = "host")]
pub mod tools;
#[cfg(feature = "host")]
pub mod trajectory;
