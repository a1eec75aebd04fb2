"""Steps of a preparation: what cleans, drops and names the documents of a corpus."""
