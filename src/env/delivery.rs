//! Takes trees out of a sandbox, as large as they are, without holding them in memory.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::guest::archive;
use crate::guest::cancel::Cancel;
use crate::guest::disk::Disk;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Op;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;

/// Most bytes of one tree. A sandbox's disk is smaller, but holes in files take no room there.
const MOST: u64 = 16 << 30;
/// Longest time of one tree.
const LIMIT: Duration = Duration::from_secs(900);
/// Pieces that are on their way.
const QUEUE: usize = 16;

/// Unpacks what a directory of the sandbox holds below the directory `to`, which is made when missing.
///
/// # Errors
/// When the guest fails, an entry would lie outside of `to`, or the disk refuses.
pub(super) async fn unpack(guest: &Guest, from: &str, to: &Path) -> Result<(), GuestError> {
    let to =
        to.to_str().ok_or_else(|| failed(format!("{} is not UTF-8", to.display())))?.to_owned();
    deliver(guest, from, move |pieces| {
        let mut receive = || pieces.next().map_err(|error| Fault::Failed(error.to_string()));
        match archive::put(&Disk::new("/"), &to, &Cancel::after(None), &mut receive) {
            Ok(_) => Ok(()),
            Err(Fault::Failed(what)) => Err(io::Error::other(what)),
            Err(other) => Err(io::Error::other(format!("{other:?}"))),
        }
    })
    .await
}

/// Writes what a directory of the sandbox holds into the tar file `to`.
///
/// # Errors
/// When the guest fails or the disk refuses.
pub(super) async fn save(guest: &Guest, from: &str, to: &Path) -> Result<(), GuestError> {
    let mut file = fs_err::File::create(to).map_err(|error| failed(error.to_string()))?;
    deliver(guest, from, move |pieces| {
        while let Some(piece) = pieces.next()? {
            file.write_all(&piece)?;
        }
        file.flush()
    })
    .await
}

/// The pieces of a tar stream.
struct Pieces {
    incoming: mpsc::Receiver<Vec<u8>>,
    taken: u64,
}

impl Pieces {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let piece = self.incoming.blocking_recv();
        self.taken += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        if self.taken > MOST {
            Err(io::Error::other(format!("more than {MOST} bytes")))
        } else {
            Ok(piece)
        }
    }
}

/// Lets `take` have the stream of a directory while it comes.
async fn deliver(
    guest: &Guest,
    from: &str,
    take: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static,
) -> Result<(), GuestError> {
    let (sender, incoming) = mpsc::channel(QUEUE);
    let taking = tokio::task::spawn_blocking(move || take(&mut Pieces { incoming, taken: 0 }));
    let sent = guest.receive(Op::GetTar { path: from.to_owned() }, LIMIT, sender).await;
    let taken = taking.await.map_err(|error| failed(error.to_string()))?;
    // The taker's own words say more than that it was gone; a stream that was cut off says more than its last piece.
    match (sent, taken) {
        (Ok(_), taken) => taken.map_err(|error| failed(error.to_string())),
        (Err(GuestError::Failed(_)), Err(error)) => Err(failed(error.to_string())),
        (Err(error), _) => Err(error),
    }
}

fn failed(what: String) -> GuestError {
    GuestError::Failed(what)
}
