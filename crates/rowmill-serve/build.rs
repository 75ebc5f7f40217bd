//! Generates the messages of the Open Inference Protocol from `proto/inference.proto`, without a protobuf compiler.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/inference.proto");
    let files = protox::compile(["inference.proto"], ["proto"])?;
    prost_build::Config::new()
        // Outputs that lie in the arena are copied only once, into the frame.
        .bytes([".inference.ModelInferResponse.raw_output_contents"])
        .compile_fds(files)?;
    Ok(())
}
