//! Frames between host and guest.
//!
//! One byte stream, both directions. A frame is a little-endian `u32` length followed by that many bytes of postcard.
//! Requests carry an id; any number may be under way. Large contents travel as `Data` frames of the request's id.
//! The version is matched exactly: the guest is embedded in the host binary.

use std::io;
use std::io::Read;
use std::io::Write;

use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::operation::Fault;
use crate::protocol::operation::Op;
use crate::protocol::operation::Reply;

/// Version of the frames; host and guest must agree.
pub const VERSION: u32 = 1;
/// Largest frame either side accepts, in bytes.
pub const MAX_FRAME: usize = 4 << 20;
/// Bytes of content in one `Data` frame.
pub const CHUNK: usize = 256 << 10;

/// Host to guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Start an operation.
    Request {
        /// Chosen by the host, unique on this stream.
        id: u64,
        /// What to do.
        op: Op,
        /// The guest gives up after this many milliseconds; 0 = never.
        deadline_ms: u64,
    },
    /// Content for the operation `id`.
    Data {
        /// The operation.
        id: u64,
        /// A piece of at most [`CHUNK`] bytes.
        bytes: Vec<u8>,
    },
    /// No more content for the operation `id`.
    EndOfData {
        /// The operation.
        id: u64,
    },
    /// Stop the operation `id` and everything it started.
    Cancel {
        /// The operation.
        id: u64,
    },
}

/// Guest to host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The first frame.
    Hello {
        /// The guest's [`VERSION`].
        version: u32,
    },
    /// Content of the operation `id`.
    Data {
        /// The operation.
        id: u64,
        /// A piece of at most [`CHUNK`] bytes.
        bytes: Vec<u8>,
    },
    /// The operation `id` is over.
    Done {
        /// The operation.
        id: u64,
        /// What came of it.
        result: Result<Reply, Fault>,
    },
}

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream failed.
    #[error("guest stream failed")]
    Io(#[from] io::Error),
    /// The length exceeds [`MAX_FRAME`].
    #[error("frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// The bytes are not a frame of this version.
    #[error("frame cannot be decoded")]
    Decode(#[from] postcard::Error),
}

/// Encodes one frame, length included.
///
/// # Errors
/// When the frame is longer than [`MAX_FRAME`].
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, WireError> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4])?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        return Err(WireError::TooLong(length));
    }
    bytes[..4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    Ok(bytes)
}

/// Decodes the body of a frame.
///
/// # Errors
/// When the bytes are not a frame, or something follows it.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let (frame, rest) = postcard::take_from_bytes(body)?;
    if rest.is_empty() {
        Ok(frame)
    } else {
        Err(WireError::Decode(postcard::Error::DeserializeBadEncoding))
    }
}

/// Checks an announced length.
///
/// # Errors
/// When it exceeds [`MAX_FRAME`].
pub fn frame_length(header: [u8; 4]) -> Result<usize, WireError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME { Err(WireError::TooLong(length)) } else { Ok(length) }
}

/// Reads one frame; `None` when the stream ended between frames.
///
/// Memory grows with the bytes that arrive, never with the length announced.
///
/// # Errors
/// When the stream fails, ends inside a frame, or holds something else.
pub fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> Result<Option<T>, WireError> {
    let mut header = [0; 4];
    let mut have = 0;
    while have < 4 {
        match stream.read(&mut header[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let length = frame_length(header)?;
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    decode(&body).map(Some)
}

/// Writes one frame.
///
/// # Errors
/// When the stream fails or the frame is too long.
pub fn write_frame<T: Serialize>(stream: &mut impl Write, frame: &T) -> Result<(), WireError> {
    stream.write_all(&encode(frame)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_round_trip() {
        let frame = ToGuest::Request {
            id: 7,
            op: Op::Run {
                session: "main".into(),
                command: b"echo \0\xff".to_vec(),
                limit_ms: 5,
                keep: 10,
            },
            deadline_ms: 9,
        };
        let bytes = encode(&frame).unwrap();
        assert_eq!(read_frame::<ToGuest>(&mut bytes.as_slice()).unwrap(), Some(frame));
        assert_eq!(read_frame::<ToGuest>(&mut [].as_slice()).unwrap(), None);
    }

    #[test]
    fn a_long_announcement_is_refused_before_anything_is_allocated() {
        let mut stream: &[u8] = &[0xff, 0xff, 0xff, 0xff, 1, 2];
        assert!(matches!(read_frame::<ToGuest>(&mut stream), Err(WireError::TooLong(_))));
    }

    proptest! {
        // A hostile peer can announce any length, outside and inside the frame: decoding either fails or gives a
        // value no larger than what it sent.
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut stream = bytes.as_slice();
            if let Ok(Some(ToGuest::Data { bytes: content, .. })) = read_frame::<ToGuest>(&mut stream) {
                prop_assert!(content.capacity() <= bytes.len() * 2);
            }
        }

        #[test]
        fn a_vector_length_inside_a_frame_does_not_allocate(length in 1u64 << 20..u64::MAX) {
            // Variant 1 of `ToGuest` is `Data`: id, then a varint length that promises more than follows.
            let mut body = vec![1, 0];
            let mut rest = length;
            while rest >= 0x80 {
                body.push((rest as u8) | 0x80);
                rest >>= 7;
            }
            body.push(rest as u8);
            prop_assert!(decode::<ToGuest>(&body).is_err());
        }
    }
}
