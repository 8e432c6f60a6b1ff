"""The rules of measuring: racing, noise, sampling, finals, selection, verification; and the measurer service."""
