//! The reading half of a connection. One read may return many small frames; a large payload is read
//! directly into its own memory.

use super::pool::Pool;
use super::reader::ReadError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;
use wire::frame::{FRAME_HEAD, FrameHead};

/// Size of the read buffer in bytes.
const READ_BUFFER: usize = 64 << 10;
/// Minimum length in bytes of payloads that are read into their own memory.
const BULK_MIN: usize = 64 << 10;
/// Payloads of fewer bytes are copied, so that a retained payload does not keep the whole read
/// buffer alive.
const COPY_LIMIT: usize = 2 << 10;

/// The position in the stream at which a read waits: between frames, where silence is normal, or
/// inside a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadPoint {
    BetweenFrames,
    InsideFrame,
}

/// The reading half of a connection.
pub(super) struct Input {
    stream: OwnedReadHalf,
    buf: BytesMut,
    pool: Arc<Pool>,
    sock_timeout: Duration,
    /// Whether the last payload was large. Then only the next header is read, so that no part of a
    /// following large payload is copied.
    after_bulk: bool,
    /// Number of frames begun since the last read into an empty buffer.
    frames_since_empty: usize,
}

impl Input {
    pub(super) fn new(stream: OwnedReadHalf, pool: Arc<Pool>, sock_timeout: Duration) -> Input {
        Input {
            stream,
            buf: BytesMut::new(),
            pool,
            sock_timeout,
            after_bulk: false,
            frames_since_empty: 0,
        }
    }

    /// Whether the last frame arrived alone: no other frame shared its read.
    pub(super) fn last_frame_was_alone(&self) -> bool {
        self.frames_since_empty == 1 && self.buf.is_empty()
    }

    /// Reads the next frame's header. Waits without a limit for its first byte, then at most
    /// `sock_timeout` for each read.
    pub(super) async fn read_head(&mut self) -> Result<FrameHead, ReadError> {
        loop {
            let parsed = FrameHead::parse(&self.buf).map_err(|e| ReadError::Violation(e.to_string()))?;
            if let Some((head, len)) = parsed {
                self.buf.advance(len);
                self.frames_since_empty += 1;
                return Ok(head);
            }
            let max_len = if self.after_bulk {
                FRAME_HEAD - self.buf.len()
            } else {
                usize::MAX
            };
            self.read_more(max_len, ReadPoint::BetweenFrames)
                .await
                .map_err(ReadError::Lost)?;
        }
    }

    /// Reads the payload of `len` bytes. `FrameHead::parse` has checked `len` against the
    /// protocol's limit.
    pub(super) async fn read_payload(&mut self, len: usize) -> Result<Bytes, String> {
        self.after_bulk = len >= BULK_MIN;
        if self.after_bulk {
            return self.read_large_payload(len).await;
        }
        while self.buf.len() < len {
            self.buf.reserve(len - self.buf.len());
            self.read_more(usize::MAX, ReadPoint::InsideFrame).await?;
        }
        if len < COPY_LIMIT {
            let copy = Bytes::copy_from_slice(&self.buf[..len]);
            self.buf.advance(len);
            return Ok(copy);
        }
        Ok(self.buf.split_to(len).freeze())
    }

    async fn read_large_payload(&mut self, len: usize) -> Result<Bytes, String> {
        let mut data = self.pool.take(len);
        let buffered = self.buf.len().min(len);
        data.as_buf_mut().put_slice(&self.buf[..buffered]);
        self.buf.advance(buffered);
        while data.len() < len {
            let missing = len - data.len();
            let into = &mut data.as_buf_mut().limit(missing);
            read(&mut self.stream, into, Some(self.sock_timeout)).await?;
        }
        Ok(data.freeze())
    }

    async fn read_more(&mut self, max_len: usize, point: ReadPoint) -> Result<(), String> {
        let inside = point == ReadPoint::InsideFrame || !self.buf.is_empty();
        if !inside {
            // An idle connection holds no buffer.
            self.buf = BytesMut::new();
            self.stream.readable().await.map_err(|e| e.to_string())?;
            self.frames_since_empty = 0;
        }
        if self.buf.capacity() - self.buf.len() < FRAME_HEAD {
            self.buf.reserve(READ_BUFFER);
        }
        let time_limit = inside.then_some(self.sock_timeout);
        read(&mut self.stream, &mut (&mut self.buf).limit(max_len), time_limit).await
    }
}

/// Reads at least one byte, and at most as many as `into` has space for. Waits at most
/// `time_limit`, if given.
async fn read(
    stream: &mut OwnedReadHalf,
    into: &mut (impl BufMut + Send),
    time_limit: Option<Duration>,
) -> Result<(), String> {
    let read = stream.read_buf(into);
    let read = match time_limit {
        None => read.await,
        Some(limit) => match timeout(limit, read).await {
            Ok(read) => read,
            Err(_) => {
                return Err(format!(
                    "it sent nothing for {limit:?} in the middle of a message"
                ));
            }
        },
    };
    match read {
        Ok(0) => Err("it closed the connection".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Input, Pool};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use wire::frame::FrameHead;

    #[tokio::test]
    async fn a_frame_that_arrives_alone_is_recognized() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (peer, ours) = tokio::join!(TcpStream::connect(to), listener.accept());
        let (mut peer, (incoming, _outgoing)) = (peer.unwrap(), ours.unwrap().0.into_split());
        let mut input = Input::new(incoming, Arc::<Pool>::default(), Duration::from_secs(50));
        let message = FrameHead::Noop { cookies: [0, 1] }.build();
        for together in [1, 2, 1, 3] {
            peer.write_all(&message.repeat(together)).await.unwrap();
            for _ in 0..together {
                assert!(input.read_head().await.is_ok());
                assert_eq!(input.last_frame_was_alone(), together == 1);
            }
        }
    }
}
