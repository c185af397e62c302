//! When an operation has to stop.

use std::io;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use crate::protocol::operation::Fault;

/// Tells an operation that the host gave it up, or that its deadline passed. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Cancel {
    asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Cancel {
    /// For an operation that may take `limit` from now on; none = any time.
    pub fn after(limit: Option<Duration>) -> Self {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { asked: Arc::new(AtomicBool::new(false)), deadline }
    }

    /// Ends the operation at its next check.
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Called inside every loop whose length the operation does not decide itself.
    ///
    /// # Errors
    /// [`Fault::Cancelled`] once it was cancelled or the deadline passed.
    pub fn check(&self) -> Result<(), Fault> {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || self.asked.load(Ordering::Relaxed) { Err(Fault::Cancelled) } else { Ok(()) }
    }

    /// `stream`, except that reading fails once [`Cancel::check`] does.
    pub fn guard<R: Read>(&self, stream: R) -> Guarded<'_, R> {
        Guarded { stream, cancel: self }
    }
}

/// A stream that ends with an error when its operation is cancelled.
#[derive(Debug)]
pub struct Guarded<'a, R> {
    stream: R,
    cancel: &'a Cancel,
}

impl<R: Read> Read for Guarded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.check().is_err() {
            return Err(io::Error::other("cancelled"));
        }
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_hears_of_the_cancellation_and_a_deadline_passes() {
        let cancel = Cancel::after(None);
        let clone = cancel.clone();
        assert_eq!(clone.check(), Ok(()));
        assert_eq!(clone.guard(&b"ab"[..]).read(&mut [0; 1]).unwrap(), 1);
        cancel.cancel();
        assert_eq!(clone.check(), Err(Fault::Cancelled));
        assert!(clone.guard(&b"ab"[..]).read(&mut [0; 1]).is_err());
        assert_eq!(Cancel::after(Some(Duration::ZERO)).check(), Err(Fault::Cancelled));
    }
}
