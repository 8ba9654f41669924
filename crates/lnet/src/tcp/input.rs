//! What a connection reads: many small frames in one read, a large payload straight into memory of its own.

use super::pool::Pool;
use super::reader::End;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;
use wire::frame::{FRAME_HEAD, FrameHead};

/// How much is read at once, if the peer has sent so much.
const READ_BUFFER: usize = 64 << 10;
/// Payloads from here on are read into memory of their own.
const BULK_MIN: usize = 64 << 10;
/// Payloads below are copied: what keeps one does not keep the whole buffer that it came in.
const COPY_MAX: usize = 2 << 10;

/// Where more is awaited: before a head, of which nothing need have come, or behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Between,
    Inside,
}

/// The reading end of a connection.
pub(super) struct Input {
    stream: OwnedReadHalf,
    buf: BytesMut,
    pool: Arc<Pool>,
    sock_timeout: Duration,
    /// The last payload was large: read only the next head, so that the next large payload is not copied in part.
    after_bulk: bool,
    /// Messages that the last read has brought so far.
    brought: usize,
}

impl Input {
    pub(super) fn new(stream: OwnedReadHalf, pool: Arc<Pool>, sock_timeout: Duration) -> Input {
        Input {
            stream,
            buf: BytesMut::new(),
            pool,
            sock_timeout,
            after_bulk: false,
            brought: 0,
        }
    }

    /// Whether the last message came by itself: none with it in the same read.
    pub(super) fn came_alone(&self) -> bool {
        self.brought == 1 && self.buf.is_empty()
    }

    /// The head of the next frame. Waits as long as it takes, but not inside of a head.
    pub(super) async fn head(&mut self) -> Result<FrameHead, End> {
        loop {
            let parsed = FrameHead::parse(&self.buf).map_err(|e| End::Wrong(e.to_string()))?;
            if let Some((head, len)) = parsed {
                self.buf.advance(len);
                self.brought += 1;
                return Ok(head);
            }
            let limit = if self.after_bulk {
                FRAME_HEAD - self.buf.len()
            } else {
                usize::MAX
            };
            self.read_more(limit, Place::Between).await.map_err(End::Lost)?;
        }
    }

    /// The `len` bytes that follow the head. `len` has been checked against the protocol's limit.
    pub(super) async fn payload(&mut self, len: usize) -> Result<Bytes, String> {
        self.after_bulk = len >= BULK_MIN;
        if self.after_bulk {
            return self.bulk(len).await;
        }
        while self.buf.len() < len {
            self.buf.reserve(len - self.buf.len());
            self.read_more(usize::MAX, Place::Inside).await?;
        }
        if len < COPY_MAX {
            let copy = Bytes::copy_from_slice(&self.buf[..len]);
            self.buf.advance(len);
            return Ok(copy);
        }
        Ok(self.buf.split_to(len).freeze())
    }

    async fn bulk(&mut self, len: usize) -> Result<Bytes, String> {
        let mut data = self.pool.take(len);
        let there = self.buf.len().min(len);
        data.as_buf_mut().put_slice(&self.buf[..there]);
        self.buf.advance(there);
        while data.len() < len {
            let missing = len - data.len();
            let into = &mut data.as_buf_mut().limit(missing);
            read(&mut self.stream, into, Some(self.sock_timeout)).await?;
        }
        Ok(data.freeze())
    }

    async fn read_more(&mut self, limit: usize, place: Place) -> Result<(), String> {
        let inside = place == Place::Inside || !self.buf.is_empty();
        if !inside {
            // While nothing comes, a connection holds no buffer.
            self.buf = BytesMut::new();
            self.stream.readable().await.map_err(|e| e.to_string())?;
            self.brought = 0;
        }
        if self.buf.capacity() - self.buf.len() < FRAME_HEAD {
            self.buf.reserve(READ_BUFFER);
        }
        let patience = inside.then_some(self.sock_timeout);
        read(&mut self.stream, &mut (&mut self.buf).limit(limit), patience).await
    }
}

/// Reads something, as much as there is room for; waits for it at most `patience`, or as long as it takes.
async fn read(
    stream: &mut OwnedReadHalf,
    into: &mut (impl BufMut + Send),
    patience: Option<Duration>,
) -> Result<(), String> {
    let read = stream.read_buf(into);
    let read = match patience {
        None => read.await,
        Some(limit) => match timeout(limit, read).await {
            Ok(read) => read,
            Err(_) => return Err(format!("it stopped inside of a message for {limit:?}")),
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
    async fn a_message_comes_alone_or_with_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (peer, ours) = tokio::join!(TcpStream::connect(to), listener.accept());
        let (mut peer, (incoming, _outgoing)) = (peer.unwrap(), ours.unwrap().0.into_split());
        let mut input = Input::new(incoming, Arc::<Pool>::default(), Duration::from_secs(50));
        let message = FrameHead::Noop { cookies: [0, 1] }.build();
        for together in [1, 2, 1, 3] {
            peer.write_all(&message.repeat(together)).await.unwrap();
            for _ in 0..together {
                assert!(input.head().await.is_ok());
                assert_eq!(input.came_alone(), together == 1);
            }
        }
    }
}
