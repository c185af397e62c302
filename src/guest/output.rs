//! A command's output, bounded while it is read: its first bytes, its last bytes, and how many there were.

use std::collections::VecDeque;

/// Keeps the first and the last `keep` bytes of what is pushed.
#[derive(Debug, Default)]
pub(crate) struct Output {
    keep: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Output {
    pub(crate) fn new(keep: usize) -> Self {
        Self { keep, ..Self::default() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.keep - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.keep)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.keep);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// The first bytes, the last bytes, and the number of all.
    pub(crate) fn take(self) -> (Vec<u8>, Vec<u8>, u64) {
        (self.head, self.tail.into(), self.total)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn head_and_tail_are_those_of_the_whole(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..20),
            keep in 0usize..30,
        ) {
            let mut output = Output::new(keep);
            for piece in &pieces {
                output.push(piece);
            }
            let whole = pieces.concat();
            let (head, tail, total) = output.take();
            prop_assert_eq!(total, whole.len() as u64);
            prop_assert_eq!(&head[..], &whole[..whole.len().min(keep)]);
            let rest = &whole[head.len()..];
            prop_assert_eq!(&tail[..], &rest[rest.len().saturating_sub(keep)..]);
        }
    }
}
