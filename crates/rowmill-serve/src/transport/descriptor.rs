//! File descriptors over a Unix socket (`SCM_RIGHTS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use tokio::io::Interest;
use tokio::net::UnixStream;

/// Room for the control message of one descriptor; padding makes it room for two.
const CONTROL_WORDS: usize = 4;

/// Send `bytes` with a copy of `file`.
pub(super) async fn send(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
    let sent = stream.async_io(Interest::WRITABLE, || send_now(stream.as_raw_fd(), bytes, file)).await?;
    // A fresh socket has room for a header.
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Fill `bytes`; the first descriptor that comes with them, if any does.
pub(super) async fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
    let (mut filled, mut file) = (0, None);
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        let (received, files) =
            stream.async_io(Interest::READABLE, || receive_now(stream.as_raw_fd(), rest)).await?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += received;
        file = file.or(files.into_iter().next());
    }
    Ok(file)
}

fn send_now(socket: RawFd, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = empty_message(&raw mut part, &mut control);
    // SAFETY: the control buffer is aligned and has room for one descriptor, as CMSG_SPACE computes it; the kernel reads
    // `bytes` and the buffer, both of which outlive the call.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        ptr::write_unaligned(libc::CMSG_DATA(header).cast(), file.as_raw_fd());
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn receive_now(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = empty_message(&raw mut part, &mut control);
    // SAFETY: the kernel writes into `bytes` and the control buffer, both borrowed for the call.
    let received = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let mut files = Vec::new();
    // SAFETY: the kernel has written well-formed control messages of the length that `message` now has. Each descriptor
    // in them is new in this process and gets its one owner here.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header);
                for number in 0..bytes / size_of::<RawFd>() {
                    files.push(OwnedFd::from_raw_fd(ptr::read_unaligned(
                        data.add(number * size_of::<RawFd>()).cast(),
                    )));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((received, files))
}

fn empty_message(part: *mut libc::iovec, control: &mut [u64; CONTROL_WORDS]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(control) as _;
    message
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn a_file_arrives_with_the_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut here, there) = UnixStream::pair().unwrap();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"shared").unwrap();
            send(&here, &[7; 64], file.as_fd()).await.unwrap();
            let mut bytes = [0; 64];
            let received = receive(&there, &mut bytes).await.unwrap().unwrap();
            assert_eq!(bytes, [7; 64]);
            let (mut received, mut text) = (std::fs::File::from(received), String::new());
            received.rewind().unwrap();
            received.read_to_string(&mut text).unwrap();
            assert_eq!(text, "shared");

            here.write_all(&[8; 64]).await.unwrap();
            assert!(receive(&there, &mut bytes).await.unwrap().is_none());
            here.write_all(&[9; 10]).await.unwrap();
            drop(here);
            let error = receive(&there, &mut bytes).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        });
    }
}
